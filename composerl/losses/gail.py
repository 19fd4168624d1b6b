"""Generative adversarial imitation learning: the discriminator's side."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, dispatch
from torch import Tensor, nn

from composerl.losses.arguments import check_whole
from composerl.losses.common import RowKeys, RowLoss
from composerl.losses.functional import discriminator_loss
from composerl.losses.reading import action_index, blank, read

__all__ = ["GAILLoss"]


class GAILLoss(RowLoss):
    r"""A discriminator that tells an expert's state-action pairs from a policy's.

    Paper: Ho & Ermon 2016, https://arxiv.org/abs/1606.03476. With logits l(s, a), labels y of 1
    for the expert and 0 for the policy, and BCE the cross entropy softplus(l) - y l

    .. math::
        L = \tfrac12 E_{expert}[BCE(l, 1) - c_H H(l)] + \tfrac12 E_{\pi}[BCE(l, 0) - c_H H(l)]

    whose minimum (:math:`c_H = 0`) is :math:`l = \log p_{expert} / p_\pi`. The policy is trained
    by another loss on rewards made of the logits, see :class:`~composerl.losses.GAILReward`.

    Difference to ``torchrl.objectives.GAILLoss``, whose arguments it takes: the cross entropy is
    that of *logits* (there the network has to end in a sigmoid); the two batches may differ in
    size, and each counts half; the gradient penalty mixes whole rows, one weight each; outputs that
    are minimised are named so, and what is the expert's.

    Args:
        discriminator_network: reads observation and action (its two ``in_keys``, in this order),
            writes ``logits`` ``(batch, 1)``; :func:`~composerl.modules.discriminator` makes one.

    Keyword Args:
        num_actions: for discrete actions, how many there are; the network gets them one-hot.
        use_grad_penalty: whether there is a gradient penalty; by default if ``gp_lambda`` is given.
        gp_lambda: its weight, :math:`\lambda (\|\nabla l(x)\| - 1)^2` at mixtures ``x`` of expert
            and policy rows; larger is smoother. With a penalty it is 10 by default, as is usual
            (Gulrajani et al. 2017, https://arxiv.org/abs/1704.00028).
        entropy_coeff: :math:`c_H`, larger values keep the discriminator undecided.
        label_smoothing: labels become 1 - s and s, s in [0, 0.5): bounds the optimal logits by
            log((1 - s) / s), and the reward with them.
        reduction: see :mod:`composerl.losses`.

    Reads ``observation``, ``action`` (the policy's) and ``("expert", "observation")``,
    ``("expert", "action")``. ``set_keys`` gives them other names, and takes TorchRL's for them
    (``collector_observation``, ``collector_action``). A batch as TorchRL's loss reads it by default
    has the expert where the policy is here::

        loss.set_keys(expert_observation="observation", expert_action="action",
                      collector_observation="collector_observation",
                      collector_action="collector_action")

    Batches of different sizes are entries of a TensorDict without batch size, or keyword arguments;
    their first dimension counts the rows. If the TensorDict has a batch size, rows are pairs of one
    policy and one expert row each. Masks and ``priority_weight`` apply to the policy's rows, and to
    the expert's if paired. The penalty mixes policy row i with expert row i modulo their number, so
    that the order of a batch should be random.

    Returns ``loss_discriminator``, with a penalty ``loss_gradient_penalty``, and
    ``accuracy_expert``, ``accuracy_policy`` (shares of rows told right), ``logits_expert``,
    ``logits_policy`` (means) and ``entropy`` (of the decision, in nats). With ``"none"`` the loss
    has the policy's rows, to each of which half the expert's mean is added where they are unpaired.

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import GAILLoss
        >>> from composerl.modules import discriminator
        >>> from tensordict import TensorDict
        >>> env = make_env("CartPole-v1")
        >>> batch = TensorDict(env.rollout(4).select("observation", "action").to_dict())
        >>> batch["expert"] = env.rollout(6)
        >>> GAILLoss(discriminator(env), num_actions=2)(batch)["loss_discriminator"].shape
        torch.Size([])
    """

    @dataclass
    class _AcceptedKeys(RowKeys):
        observation: NestedKey = "observation"
        expert_observation: NestedKey = ("expert", "observation")
        expert_action: NestedKey = ("expert", "action")
        discriminator_pred: NestedKey = "logits"

        @property
        def collector_observation(self) -> NestedKey:
            """TorchRL's name of the policy's observation."""
            return self.observation

        @property
        def collector_action(self) -> NestedKey:
            """TorchRL's name of the policy's action."""
            return self.action

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = None
    out_keys = [  # noqa: RUF012
        "loss_discriminator", "accuracy_expert", "accuracy_policy", "logits_expert",
        "logits_policy", "entropy",
    ]  # fmt: skip

    def __init__(
        self,
        discriminator_network: TensorDictModule,
        *,
        num_actions: int | None = None,
        use_grad_penalty: bool | None = None,
        gp_lambda: float | None = None,
        entropy_coeff: float = 0.0,
        label_smoothing: float = 0.0,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction)
        if gp_lambda is None:
            gp_lambda = 10.0 if use_grad_penalty else 0.0
        self.coefficient("gp_lambda", gp_lambda, "[0, inf)")
        self.use_grad_penalty = gp_lambda > 0 if use_grad_penalty is None else use_grad_penalty
        self.coefficient("entropy_coeff", entropy_coeff, "[0, inf)")
        self.coefficient("label_smoothing", label_smoothing, "[0, 0.5)")
        if len(discriminator_network.in_keys) != 2:
            raise ValueError(
                "discriminator_network must read two entries, observation and action, "
                f"got in_keys {discriminator_network.in_keys}"
            )
        if isinstance([*discriminator_network.modules()][-1], nn.Sigmoid):
            raise ValueError("discriminator_network must write logits: leave out its last Sigmoid")
        self.discriminator_network = discriminator_network
        if len(discriminator_network.out_keys) == 1:
            self.set_keys(discriminator_pred=discriminator_network.out_keys[0])
        self.num_actions = num_actions
        if num_actions is not None:
            check_whole("num_actions", num_actions, 2)
        if self.use_grad_penalty:
            self.out_keys = [*self.out_keys, "loss_gradient_penalty"]

    def set_keys(self, **keys: NestedKey | None) -> None:
        """Name entries of the batch; TorchRL's ``collector_*`` are the policy's, as without it."""
        super().set_keys(**{name.removeprefix("collector_"): key for name, key in keys.items()})

    def reads(self) -> list[NestedKey]:
        keys = self.tensor_keys
        return [keys.observation, keys.action, keys.expert_observation, keys.expert_action]

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Evaluate the discriminator on a batch of each side."""
        keys = self.tensor_keys
        paired = len(tensordict.batch_size) > 0
        policy = tensordict if paired else self._as_rows(tensordict)
        mask = self._mask(policy)
        policy = policy if mask is None else blank(policy, mask)
        obs, action = self._pairs(policy, keys.observation, keys.action, policy.batch_size)
        expert = policy if paired else tensordict
        rows = policy.batch_size if paired else read(expert, keys.expert_observation).shape[:1]
        expert_obs, expert_action = self._pairs(
            expert, keys.expert_observation, keys.expert_action, rows
        )
        logits = self._logits(torch.cat([obs, expert_obs]), torch.cat([action, expert_action]))
        label = torch.zeros_like(logits)
        label[len(obs) :] = 1
        # of a coin that shows "expert" with probability sigmoid(logits)
        entropy = F.softplus(logits) - logits * logits.sigmoid()
        smooth = label.lerp(1 - label, self.label_smoothing)
        loss = discriminator_loss(logits, smooth) - self.entropy_coeff * entropy
        right = ((logits > 0) == (label > 0)).to(logits.dtype)

        def split(x: Tensor) -> tuple[Tensor, Tensor]:
            return x[: len(obs)].reshape(policy.batch_size), x[len(obs) :].reshape(rows)

        def halves(x: Tensor) -> Tensor:
            mine, theirs = split(x)
            return 0.5 * (mine + (theirs if paired else theirs.mean()))

        (right_policy, right_expert), (l_policy, l_expert) = split(right), split(logits.detach())
        mine = {
            "loss_discriminator": halves(loss),
            "accuracy_policy": right_policy,
            "logits_policy": l_policy,
            "entropy": halves(entropy.detach()),
        }
        if self.use_grad_penalty:
            penalty = self._gradient_penalty(obs, action, expert_obs, expert_action)
            mine["loss_gradient_penalty"] = penalty.reshape(policy.batch_size)
        theirs = {"accuracy_expert": right_expert, "logits_expert": l_expert}
        if paired:
            return self._reduced(policy, mask, mine | theirs)
        if self.reduction != "none":
            theirs = {key: value.mean() for key, value in theirs.items()}
        return TensorDict(dict(self._reduced(policy, mask, mine).items()) | theirs)

    def _as_rows(self, tensordict: TensorDictBase) -> TensorDictBase:
        """What concerns the policy's rows, with their number as its batch size."""
        keys = self.tensor_keys
        rows = read(tensordict, keys.observation).shape[:1]
        names = (keys.observation, keys.action, keys.priority_weight, *self._loss_mask_keys())
        found = {key: tensordict.get(key, None) for key in names}
        entries = {key: value for key, value in found.items() if value is not None}
        for key, value in entries.items():
            if value.shape[:1] != rows:
                raise ValueError(
                    f"entry {key!r} has {value.shape[:1].numel()} rows, but {keys.observation!r} "
                    f"has {rows.numel()}"
                )
        return TensorDict(entries, rows)

    def _pairs(
        self, batch: TensorDictBase, obs_key: NestedKey, action_key: NestedKey, rows: torch.Size
    ) -> tuple[Tensor, Tensor]:
        """Observations and float actions of one side, in rows."""
        observation, action = read(batch, obs_key), read(batch, action_key)
        if self.num_actions is not None:
            index = action_index(action, self.num_actions, rows, action_key)
            action = F.one_hot(index, self.num_actions).to(self.gp_lambda.dtype)
        elif action.ndim != len(rows) + 1 or action.shape[:-1] != rows:
            raise ValueError(
                f"entry {action_key!r} must be floats of shape {(*rows, 'actions')}, got "
                f"{action.dtype} of shape {tuple(action.shape)}; discrete ones need num_actions"
            )
        return observation.flatten(0, len(rows) - 1), action.flatten(0, len(rows) - 1)

    def _logits(self, observation: Tensor, action: Tensor) -> Tensor:
        network, key = self.discriminator_network, self.tensor_keys.discriminator_pred
        given = dict(zip(network.in_keys, (observation, action), strict=True))
        return self.value_of(network, TensorDict({}, observation.shape[:1]), key, given=given)

    def _gradient_penalty(
        self, obs: Tensor, action: Tensor, expert_obs: Tensor, expert_action: Tensor
    ) -> Tensor:
        """Per policy row: how far the slope of the logits is from 1 somewhere towards an expert."""
        if len(expert_obs) != len(obs):
            index = torch.arange(len(obs), device=obs.device) % len(expert_obs)
            expert_obs, expert_action = expert_obs[index], expert_action[index]
        kind = self.gp_lambda.dtype
        share = torch.rand(len(obs), dtype=kind, device=obs.device)

        def mix(a: Tensor, b: Tensor) -> Tensor:
            weight = share.reshape(-1, *[1] * (a.ndim - 1))
            return b.to(kind).lerp(a.to(kind), weight)

        # Rows do not interact, so the gradient of the sum is that of each row. torch.autograd.grad
        # would do as well, but a compiled graph cannot hold it.
        slopes = torch.func.grad(lambda *pair: self._logits(*pair).sum(), argnums=(0, 1))(
            mix(expert_obs, obs), mix(expert_action, action)
        )
        norm = torch.cat([slope.flatten(1) for slope in slopes], 1).norm(dim=1)
        return self.gp_lambda * (norm - 1).square()
