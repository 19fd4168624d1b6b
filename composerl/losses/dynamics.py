"""Likelihood of a learned model of the environment."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor

from composerl.losses.arguments import check_number
from composerl.losses.calling import evaluate, inside
from composerl.losses.common import RowKeys, RowLoss
from composerl.losses.functional import gaussian_nll
from composerl.losses.reading import read, step_key

__all__ = ["DynamicsLoss"]

#: Rows that a holdout evaluation takes at a time: their activations stay in the cache.
CHUNK = 512


class DynamicsLoss(RowLoss):
    r"""Fits an ensemble of Gaussian models to what an environment did.

    Paper: Chua et al. 2018 (PETS), https://arxiv.org/abs/1805.12114, appendix A; the settings are
    those of Janner et al. 2019 (MBPO), https://arxiv.org/abs/1906.08253. With the target
    :math:`y = (s' - s, r)` of d entries and member e's mean and log-variance

    .. math::
        L_{dynamics} &= \textstyle\sum_e \frac1d \sum_i
            (y_i - \mu_{e,i})^2 e^{-\lambda_{e,i}} + \lambda_{e,i} \\
        L_{bounds} &= c \textstyle\sum_i \lambda^{max}_i - \lambda^{min}_i \\
        L_{terminated} &= \textstyle\sum_e BCE(logit_e, terminated)

    The sum over members makes each one's gradient that of its own mean, whatever their number.

    Args:
        dynamics_network: a TensorDictModule of (observation, action), whose ``module`` has
            ``predict(observation, action) -> (mean, log_var, logit or None)`` with the members as
            first dimension, ``members``, ``min_log_var``, ``max_log_var``, ``target_std`` and,
            for :meth:`parameter_groups`, ``layers``; :func:`composerl.modules.ensemble` makes one.

    Keyword Args:
        bounds_weight: c >= 0: larger values pull the learned bounds of the variance together.
        per_member: the first dimension of the batch is the member: each sees rows of its own
            (a bootstrap). Otherwise all see all rows.
        reduction: see :mod:`composerl.losses`.

    Reads: ``observation``, ``action``, ``("next", "observation")``, ``("next", "reward")``, with a
    termination head ``("next", "terminated")``.

    Returns: ``loss_dynamics``, ``loss_bounds``, with a head ``loss_terminated``; ``mse``, the
    squared error of the means, in units of the targets' variance as :meth:`holdout_mse` is.

    Example:
        >>> from composerl.envs import make_env
        >>> from composerl.losses import DynamicsLoss
        >>> from composerl.modules import ensemble
        >>> env = make_env("Pendulum-v1")
        >>> sorted(DynamicsLoss(ensemble(env))(env.rollout(4)).keys())
        ['loss_bounds', 'loss_dynamics', 'mse']
    """

    @dataclass
    class _AcceptedKeys(RowKeys):
        observation: NestedKey = "observation"
        reward: NestedKey = "reward"
        terminated: NestedKey = "terminated"

    tensor_keys: _AcceptedKeys
    default_keys = _AcceptedKeys
    default_value_estimator = None

    def __init__(
        self,
        dynamics_network: TensorDictModule,
        *,
        bounds_weight: float = 0.01,
        per_member: bool = False,
        reduction: str | None = None,
    ) -> None:
        super().__init__(reduction)
        self.dynamics_network = dynamics_network
        self.per_member = per_member
        self.coefficient("bounds_weight", bounds_weight, "[0, inf)")
        head = ["loss_terminated"] if self.model.terminates else []
        self.out_keys = ["loss_dynamics", "loss_bounds", *head, "mse"]

    @property
    def model(self) -> Any:
        """What predicts: the module inside the network."""
        return inside(self.dynamics_network)

    def reads(self) -> list[NestedKey]:
        keys = self.tensor_keys
        head = [step_key(keys.terminated)] if self.model.terminates else []
        return [
            keys.observation, keys.action,
            step_key(keys.observation), step_key(keys.reward), *head,
        ]  # fmt: skip

    def rows(self, batch: TensorDictBase, mask: Tensor | None) -> dict[str, Tensor]:
        shape, model, keys = batch.batch_size, self.model, self.tensor_keys
        if self.per_member and (len(shape) < 2 or shape[0] != model.members):
            raise ValueError(
                f"with per_member the batch has shape ({model.members}, rows...), "
                f"got {tuple(shape)}"
            )
        *inputs, target = (self._flat(x, batch.ndim) for x in self.columns(batch))
        mean, log_var, logit = evaluate(model.predict, (keys.observation, keys.action), inputs)

        nll = gaussian_nll(target - mean, log_var).mean(-1)
        spread = self.bounds_weight * (model.max_log_var - model.min_log_var).sum()
        rows = {"loss_dynamics": self._members(nll, shape), "loss_bounds": spread.expand(shape)}
        if logit is not None:
            ended = self._flat(read(batch, step_key(keys.terminated)), batch.ndim).squeeze(-1)
            cross_entropy = F.binary_cross_entropy_with_logits(
                logit, ended.to(logit.dtype).expand_as(logit), reduction="none"
            )
            rows["loss_terminated"] = self._members(cross_entropy, shape)
        error = self._squared_error(target, mean.detach()).mean(-1)
        rows["mse"] = self._members(error, shape) / model.members
        return rows

    @torch.no_grad()
    def holdout_mse(self, tensordict: TensorDictBase) -> Tensor:
        """Mean squared error of each member ``(members,)`` over rows that all of them see.

        In units of the targets' variance: 1 is no better than guessing their mean.
        """
        sums = []
        for rows in tensordict.reshape(-1).split(CHUNK):
            observation, action, target = self.columns(rows)
            mean, _, _ = self.model.predict(observation, action)
            sums.append(self._squared_error(target, mean).sum((1, 2)))
        return sum(sums, torch.zeros(())) / (tensordict.numel() * mean.shape[-1])

    def columns(self, tensordict: TensorDictBase) -> tuple[Tensor, Tensor, Tensor]:
        """Observation, action and target (change and reward side by side) of these rows."""
        keys = self.tensor_keys
        observation = read(tensordict, keys.observation)
        change = read(tensordict, step_key(keys.observation)) - observation
        target = torch.cat([change, read(tensordict, step_key(keys.reward))], -1)
        return observation, read(tensordict, keys.action), target

    def parameter_groups(
        self, lr: float = 1e-3, weight_decay: tuple[float, float] = (2.5e-5, 1e-4)
    ) -> list[dict[str, Any]]:
        """Groups for an optimizer: ``weight_decay`` is that of the first and the last layer.

        It grows along a straight line in between; biases and bounds have none.
        """
        first, last = (check_number("weight_decay", d, "[0, inf)") for d in weight_decay)
        layers = list(self.model.layers)
        groups: list[dict[str, Any]] = []
        for depth, layer in enumerate(layers):
            decay = first + (last - first) * depth / max(1, len(layers) - 1)
            groups.append({"params": [layer.weight], "lr": lr, "weight_decay": decay})
        taken = {id(layer.weight) for layer in layers}
        rest = [p for p in self.parameters() if id(p) not in taken]
        return [*groups, {"params": rest, "lr": lr, "weight_decay": 0.0}]

    # ---- shapes: (batch...) becomes (rows) or (members, rows), and back ---------------------

    def _flat(self, value: Tensor, ndim: int) -> Tensor:
        lead = (self.model.members,) if self.per_member else ()
        return value.reshape(*lead, -1, *value.shape[ndim:])

    def _squared_error(self, target: Tensor, mean: Tensor) -> Tensor:
        return ((target - mean) / self.model.target_std).square()

    def _members(self, value: Tensor, shape: torch.Size) -> Tensor:
        """``(members, rows)`` in the batch's shape, so that a mean is the sum of the members'."""
        if self.per_member:
            return (value * self.model.members).reshape(shape)
        return value.sum(0).reshape(shape)
