"""Behaviour cloning."""

from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictSequential, TensorDictModule
from torch import Tensor
from torchrl.modules import Actor

from composerl.losses.calling import call_network, distribution
from composerl.losses.common import RowLoss
from composerl.losses.distributions import action_log_prob
from composerl.losses.functional import distance
from composerl.losses.reading import read

__all__ = ["BCLoss"]


class BCLoss(RowLoss):
    r"""Behaviour cloning: maximum likelihood of the data's actions, :math:`-\log \pi(a | s)`.

    The baseline of imitation (Pomerleau 1989): it needs no environment, and drifts off where the
    data do not show how to come back. A policy without a distribution, which has no likelihood, is
    drawn to the data's actions by the mean squared error of their elements.

    Difference to ``torchrl.objectives.BCLoss``: actions of a categorical policy may be integers,
    for which that takes the cross entropy of a *sampled* action and fails; the policy is called
    directly; masks and weights are read.

    Args:
        actor_network: the policy.

    Keyword Args:
        loss_function: for a policy without a distribution, another distance, see
            :mod:`composerl.losses`, where ``reduction`` and what is read are found too.

    Returns ``loss_bc``.

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
        self,
        actor_network: ProbabilisticTensorDictSequential | TensorDictModule,
        *,
        loss_function: str | None = None,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction, "l2" if loss_function in (None, "mse") else loss_function)
        self.actor_network = actor_network
        # TorchRL's Actor offers a distribution too: a point, whose density is infinite or nothing.
        self._by_density = hasattr(actor_network, "get_dist") and not isinstance(
            actor_network, Actor
        )
        if self._by_density and loss_function is not None:
            raise ValueError(
                f"loss_function={loss_function!r} is for a policy without a distribution: of one "
                f"with a distribution the likelihood is maximised"
            )

    def reads(self) -> list[NestedKey]:
        return [self.tensor_keys.action, *self.actor_network.in_keys]

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        key = self.tensor_keys.action
        if self._by_density:
            dist = distribution(self.actor_network, batch)
            return {"loss_bc": -action_log_prob(dist, batch, key)}
        action, own = read(batch, key), call_network(self.actor_network, batch, key)
        if action.shape != own.shape or not action.is_floating_point():
            raise ValueError(
                f"entry {key!r} must be floats of shape {tuple(own.shape)}, as the policy writes, "
                f"got {action.dtype} of shape {tuple(action.shape)}"
            )
        each = distance(own, action, self.loss_function)
        return {"loss_bc": each.reshape(*batch.batch_size, -1).mean(-1)}
