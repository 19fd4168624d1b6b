"""Behaviour cloning."""

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential
from torch import Tensor

from composerl.losses.common import LeanLoss
from composerl.losses.reading import action_log_prob, distribution

__all__ = ["BCLoss"]


class BCLoss(LeanLoss):
    r"""Behaviour cloning: maximum likelihood of the data's actions, :math:`-\log \pi(a | s)`.

    The baseline of imitation (Pomerleau 1989): it needs no environment, and drifts off where the
    data do not show how to come back.

    Difference to ``torchrl.objectives.BCLoss``: actions of a categorical policy may be integers,
    for which that takes the cross entropy of a *sampled* action and fails; the policy is called
    directly; masks and weights are read.

    Arguments and what is read: see :mod:`composerl.losses`. Returns ``loss_bc``.

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import BCLoss
        >>> from composerl.modules import categorical_actor
        >>> env = make_env("CartPole-v1")
        >>> BCLoss(categorical_actor(env))(env.rollout(4))["loss_bc"].shape
        torch.Size([])
    """

    default_value_estimator = None
    out_keys = ["loss_bc"]  # noqa: RUF012

    def __init__(
        self, actor_network: ProbabilisticTensorDictSequential, *, reduction: str | None = None
    ) -> None:
        super().__init__(reduction)
        self.actor_network = actor_network

    def _reads(self) -> list[NestedKey]:
        return [self.tensor_keys.action, *self.actor_network.in_keys]

    def _rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        dist = distribution(self.actor_network, batch)
        return {"loss_bc": -action_log_prob(dist, batch, self.tensor_keys.action)}
