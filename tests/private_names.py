"""Private names of torch, tensordict, TorchRL and W&B that composerl leans on, with ways out.

``tests/test_private.py`` tries every one of them: an upgrade that breaks one fails there, with
what to do about it, and not in the middle of a training. It also reads the package's source, so
that a name which is used and not listed fails too.
"""

from __future__ import annotations

from typing import NamedTuple


class Private(NamedTuple):
    """Private names of one owner."""

    owner: str
    """The module or class that has them."""
    names: tuple[str, ...]
    where: tuple[str, ...]
    """Modules of ours that use them, without ``composerl.``; a package stands for all in it."""
    purpose: str
    remedy: str
    """What to do when they are gone."""


PRIVATE = (
    Private(
        "torch",
        ("_foreach_add_", "_foreach_addcmul_", "_foreach_div", "_foreach_lerp_", "_foreach_mul",
         "_foreach_mul_", "_foreach_norm", "_foreach_sqrt"),
        ("optim.adam", "optim.laprop", "update"),
        "one call for the tensors of all parameters",
        "loop over the tensors with the methods of these names",
    ),
    Private(
        "torch",
        ("_fused_adam_",),
        ("optim.adam",),
        "the kernel of Adam without the checks around it, which take as long on small networks",
        "let FusedAdam be torch.optim.Adam(fused=True), whose state is the same",
    ),
    Private(
        "crafter.Env",
        ("_balance_chunk", "_episode", "_seed", "_world"),
        ("envs.crafter",),
        "episodes that depend on their seed alone: the game draws by the order of sets",
        "leave the game as it is; its episodes then differ from process to process",
    ),
    Private(
        "torch.Tensor",
        ("_base",),
        ("optim.adam",),
        "whether the steps of all parameters are views of one tensor, which is counted at once",
        "count each by torch._foreach_add_ in FusedAdam.step, as where some have no gradient",
    ),
    Private(
        "torch.distributions.Categorical",
        ("_validate_args",),
        ("losses.distributions",),
        "whether a distribution checks the actions, and must be asked itself for log_prob",
        "let _is_plain in losses/distributions.py return False: log_prob and entropy say the same",
    ),
    Private(
        "torch.distributions.Categorical, of an object",
        ("_num_events", "_param"),
        ("modules.actors",),
        "what its sample and shapes are made of, set without its own normalisation and checks",
        "let categorical_actor use Categorical with validate_args=False",
    ),
    Private(
        "torch",
        ("_dynamo",),
        ("optim.inductor",),
        "its trace_autograd_ops lets backward() be part of the compiled graph",
        "if it is on by default now, drop the line; else compile the loss alone in GraphStep",
    ),
    Private(
        "torch",
        ("_inductor",),
        ("optim.inductor",),
        "its vec_isa_ok spares the trials of the CPU's instructions before the first kernel",
        "drop the line; compiling takes 8 s longer then where the cache is empty",
    ),
    Private(
        "torch.nn.Module",
        ("_buffers", "_forward_hooks", "_forward_pre_hooks", "_modules", "_parameters"),
        ("losses",),
        "submodules and buffers found fast; a network with hooks is not called around them",
        "named_children() and named_buffers(); call networks with a TensorDict always (is_plain)",
    ),
    Private(
        "tensordict.TensorDict",
        ("_new_unsafe",),
        ("_private",),
        "a TensorDict whose entries are known to fit, at a fraction of the constructor's time",
        "TensorDict(values, shape, names=names) in unchecked_tensordict",
    ),
    Private(
        "tensordict.TensorDict",
        ("_metadata",),
        ("bookkeeping.trees",),
        "the shapes in the state_dict of a TensorDict, which TorchRL's storages save",
        "see where TensorDict.load_state_dict reads the batch size from, and save that",
    ),
    Private(
        "tensordict.nn.TensorDictModule",
        ("_kwargs",),
        ("losses.calling",),
        "whether its inputs go to the module by position",
        "always call networks with a TensorDict",
    ),
    Private(
        "torchrl.objectives.LossModule",
        (
            "_AcceptedKeys", "_forward_value_estimator_keys", "_in_keys", "_loss_mask_keys",
            "_reduce_loss", "_set_in_keys",
        ),
        ("losses", "testing"),
        "how TorchRL's own losses name their keys, and reduce under masks and weights",
        "follow the losses of torchrl.objectives: they do the same by other names then",
    ),
    Private(
        "torchrl.objectives.LossModule",
        ("_has_update_associated",),
        ("losses.networks", "update"),
        "tells TorchRL that targets are updated, or it warns at every call",
        "drop it, and the warning with warnings.filterwarnings",
    ),
    Private(
        "torchrl.envs.EnvBase",
        ("_reset", "_set_seed", "_step"),
        ("data.collect.records", "data.imagine"),
        "what TorchRL's documentation asks an environment to have",
        "rename them as its documentation says",
    ),
    Private(
        "torchrl.envs.GymWrapper",
        ("_env",),
        ("data.collect.inside",),
        "the gymnasium environment inside, which the fast collector steps",
        "return None in _gym_environments until found: collectors then take TorchRL's way",
    ),
    Private(
        "torchrl.envs.Transform",
        ("_apply_transform", "_inv_call"),
        ("data.collect.inside", "data.replay"),
        "what TorchRL's documentation asks a transform to have; the first also for one tensor",
        "rename them as its documentation says; the first: call the transform with a TensorDict",
    ),
    Private(
        "torchrl.collectors.Collector",
        (
            "_carrier", "_exclude_private_keys", "_frames", "_iterator",
            "_should_use_random_frames", "_traj_pool", "_use_buffers", "_wrapped_policy",
        ),
        ("data.collect",),
        "the state that rollout() of a subclass shares with the rest of the collector",
        "read Collector.rollout() anew and say there what it says",
    ),
    Private(
        "torchrl.data.LazyTensorStorage",
        (
            "_bump_mutation_revision", "_empty", "_init", "_last_cursor_index", "_len",
            "_rand_given_ndim", "_rng", "_set_last_cursor", "_storage",
        ),
        ("data.offline.storage", "data.replay"),
        "the state that a storage shares with TorchRL's samplers and writers",
        "read TensorStorage.set() and get() anew; recipes run with LazyTensorStorage meanwhile",
    ),
    Private(
        "torchrl.data.PrioritizedSampler",
        (
            "_alpha", "_beta", "_eps", "_init", "_max_priority", "_max_priority_within_buffer",
            "_min_tree", "_rng", "_sum_tree",
        ),
        ("data.replay.prioritized",),
        "its trees, replaced where TorchRL's extension does not load, and saved by content",
        "read PrioritizedSampler anew; if it needs no extension any more, only state_dict is left",
    ),
    Private(
        "wandb.Run",
        ("_detect_and_apply_job_inputs",),
        ("bookkeeping.wandb_run",),
        "a start of W&B that does not import Launch, more than half of its time",
        "see whether wandb.init() still imports wandb.sdk.launch; if not, drop the function",
    ),
)  # fmt: skip
