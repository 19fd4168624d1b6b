"""Losses as TorchRL LossModules, and the per-sample functions they are made of.

What they have in common, and their own docstrings do not repeat:

Arguments:
    actor_network: the policy, with ``get_dist``.
    qvalue_network: one critic, which is joined by re-initialised copies, or a list of critics.
    num_qvalue_nets: how many critics; the minimum of them is taken.
    loss_function: distance of values to their target: ``"l2"``, ``"l1"``, ``"smooth_l1"`` or
        ``"huber"`` (delta 20).
    gamma: discount; the same as ``make_value_estimator(gamma=...)``, 0.99 by default.
    reduction: ``"mean"`` (the default), ``"sum"`` or ``"none"`` (a loss for each row).

A loss with a namesake in ``torchrl.objectives`` takes all of its options, with its meaning:

    delay_actor: keep a target copy of the actor (``delay_qvalue``, ``delay_value``: of critics);
        without one, ``target_*`` is the network itself.
    separate_losses: weights that a critic shares with the actor learn from the actor alone.
    scalar_output_mode: with ``reduction="none"``, leave metrics out (``"exclude"``), or give their
        means as ``"non_tensor"`` data; by default they are given for each row.
    use_prioritized_weights: False ignores ``priority_weight``.
    deactivate_vmap: changes nothing, like ``functional``: networks are called one by one.

Reads: the ``in_keys`` of the networks; ``action``, where it is discrete as integers ``(batch,)`` or
``(batch, 1)`` or one-hot; if present ``priority_weight`` (losses become weighted means,
``sum(w * l) / sum(w)``) and ``("collector", "mask")`` (rows that do not count). A loss of
transitions also reads the inputs of networks at s' under ``"next"``, ``("next", "reward")``,
``("next", "done")``, ``("next", "terminated")``, and if present ``steps_to_next_obs`` (n-step).
Where the best of discrete actions is taken, ``action_mask`` and ``("next", "action_mask")``, bool
``(batch, actions)``, say which are allowed; policies read a mask if it is among their inputs.
``set_keys`` gives the entries other names.

Returns: ``loss_*``, exactly what is minimised; everything else is detached, a mean to look at. What
prioritized replay needs is written into the batch as ``td_error`` ``(batch,)``.

``iql_loss``, ``cql_loss`` and their like are the same without TensorDict, functions of plain
tensors. What differs from TorchRL's losses is in ``README.md`` beside this file.
"""

from typing import TYPE_CHECKING

from composerl._lazy import lazy

if TYPE_CHECKING:
    from composerl.losses.bc import BCLoss
    from composerl.losses.calling import call_network, distribution
    from composerl.losses.common import RowLoss
    from composerl.losses.cql import CQLLoss
    from composerl.losses.discrete_cql import DiscreteCQLLoss
    from composerl.losses.distributions import action_log_prob, squashed_sample
    from composerl.losses.dreamer import DreamerLoss
    from composerl.losses.dreamer_math import (
        categorical_kl,
        free_nats_kl,
        lambda_return,
        return_range,
        symexp,
        symexp_bins,
        symlog,
        two_hot,
        two_hot_loss,
        two_hot_mean,
    )
    from composerl.losses.dynamics import DynamicsLoss
    from composerl.losses.fqe import FQELoss
    from composerl.losses.fqf import FQFLoss
    from composerl.losses.functional import (
        advantage_weighted_loss,
        clipped_objective,
        cql_penalty,
        discriminator_loss,
        distance,
        expectile_loss,
        gaussian_nll,
        gumbel_rescale_loss,
        quantile_huber_loss,
        xql_value_loss,
    )
    from composerl.losses.gail import GAILLoss
    from composerl.losses.iql import IQLLoss
    from composerl.losses.iqn import IQNLoss
    from composerl.losses.keys import DiscreteKeys, RowKeys, TransitionKeys
    from composerl.losses.ppo import ClipPPOLoss
    from composerl.losses.pure import critic_loss, iql_loss, td_target, xql_loss
    from composerl.losses.pure_quantiles import fqf_loss, iqn_loss
    from composerl.losses.pure_sac import cql_loss, sac_loss
    from composerl.losses.reading import read
    from composerl.losses.rewards import GAILReward, gail_reward
    from composerl.losses.sac import SACLoss
    from composerl.losses.td3_bc import TD3BCLoss
    from composerl.losses.world_model import WorldModelLoss
    from composerl.losses.xql import XQLLoss

__getattr__, __dir__, __all__ = lazy(__name__, __file__)
