"""TorchRL's DreamerV3 as the docstring of its loss has it, with our encoder, decoder and widths."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.data import Composite, OneHot, Unbounded
from torchrl.envs.model_based import DreamerEnv
from torchrl.modules import (
    MLP,
    DreamerV3DiscreteActor,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    WorldModelWrapper,
)
from torchrl.objectives import (
    DreamerV3ActorLoss,
    DreamerV3Loss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    SoftUpdate,
)

from composerl.modules.world_images import ImageDecoder, ImageEncoder
from composerl.modules.world_size import world_size

from .timing import Step

SHAPE, ACTIONS = (3, 64, 64), 6


class Images(nn.Module):
    """An encoder or decoder of flat batches, for any leading dimensions."""

    def __init__(self, net: nn.Module, trailing: int) -> None:
        super().__init__()
        self.net, self.trailing = net, trailing

    def forward(self, *inputs: Tensor) -> Tensor:
        x = torch.cat(inputs, -1) if len(inputs) > 1 else inputs[0]
        lead = x.shape[: x.ndim - self.trailing]
        return self.net(x.flatten(0, len(lead) - 1)).unflatten(0, lead)


def transitions(records: TensorDict, deter: int, stoch: int) -> TensorDict:
    """Records as its rollout reads them."""
    shape = records.shape
    flags = {
        "done": records["terminal"].unsqueeze(-1),
        "terminated": records["terminal"][..., None],
    }
    following = {"observation": records["observation"].float() / 255,
                 "reward": records["reward"].unsqueeze(-1), **flags}  # fmt: skip
    start = {"state": torch.zeros(*shape, stoch), "belief": torch.zeros(*shape, deter)}
    action = nn.functional.one_hot(records["action"], ACTIONS).float()
    first = records["first"].unsqueeze(-1)
    return TensorDict({**start, "action": action, "is_init": first, "next": following}, shape)


def dreamer(size: str, records: TensorDict) -> Step:
    """One update of everything."""
    torch.manual_seed(0)
    n = world_size(size)
    deter, units, stoch = n.deter, n.units, n.stoch
    latents = {"hidden_dim": units, "rnn_hidden_dim": deter, "num_categoricals": n.latents,
               "num_classes": n.classes, "unimix": 0.01}  # fmt: skip
    encoder = ImageEncoder(SHAPE, n.depth)
    decoder = ImageDecoder(stoch + deter, SHAPE, n.depth)
    prior = RSSMPriorV3(action_shape=(ACTIONS,), action_dim=ACTIONS, prior_num_layers=1, **latents)
    posterior = RSSMPosteriorV3(obs_embed_dim=encoder.out_dim, **latents)

    def head() -> MLP:
        return MLP(in_features=stoch + deter, out_features=1, num_cells=units, depth=n.layers)

    reward = head()
    states, after = ["state", "belief"], [("next", "state"), ("next", "belief")]
    rollout = RSSMRolloutV3(
        TensorDictModule(prior, [*states, "action"], [("next", "prior_logits"), *after]),
        TensorDictModule(posterior, [("next", "belief"), ("next", "encoded")],
                         [("next", "posterior_logits"), ("next", "state")]),
    )  # fmt: skip
    world = TensorDictSequential(
        TensorDictModule(Images(encoder, 3), [("next", "observation")], [("next", "encoded")]),
        rollout,
        TensorDictModule(Images(decoder, 1), after, [("next", "reco_pixels")]),
        TensorDictModule(reward, after, [("next", "reward")]),
    )
    imagined = WorldModelWrapper(
        TensorDictModule(prior, [*states, "action"], ["_", *states]),
        TensorDictModule(reward, states, ["reward"]),
    )
    env = DreamerEnv(imagined, prior_shape=(stoch,), belief_shape=(deter,))
    env.observation_spec = Composite(state=Unbounded(stoch), belief=Unbounded(deter))
    env.state_spec = env.observation_spec.clone()
    env.action_spec, env.reward_spec = OneHot(ACTIONS), Unbounded((1,))
    actor = DreamerV3DiscreteActor(
        stoch + deter, ACTIONS, depth=n.layers, num_cells=units, in_keys=states
    )
    critic = TensorDictModule(head(), states, ["state_value"])
    model_loss = DreamerV3ModelLoss(
        world, reward_two_hot=False, reco_symlog=False, kl_mode="separate", detach_output=False
    )
    model_loss.set_keys(pixels="observation")
    actor_loss = DreamerV3ActorLoss(actor, critic, env, use_reinforce=True)
    value_loss = DreamerV3ValueLoss(critic, actor_loss=actor_loss, slow_critic_regularization=1.0)
    loss, updater = (
        DreamerV3Loss(model_loss, actor_loss, value_loss),
        SoftUpdate(value_loss, tau=0.02),
    )
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-4)
    batch = transitions(records, deter, stoch)

    def step() -> None:
        out = loss(batch.copy())
        sum(value for key, value in out.items() if key.startswith("loss_")).backward()
        nn.utils.clip_grad_norm_(loss.parameters(), 100.0)
        optimizer.step()
        optimizer.zero_grad()
        updater.step()

    return step
