"""What the losses call the entries of a batch; ``set_keys`` gives them other names."""

from dataclasses import dataclass

from tensordict import NestedKey

__all__ = ["DiscreteKeys", "RowKeys", "TransitionKeys"]


@dataclass
class RowKeys:
    """The keys of every loss."""

    action: NestedKey = "action"
    priority_weight: NestedKey = "priority_weight"


@dataclass
class TransitionKeys(RowKeys):
    """The keys of a loss of transitions."""

    priority: NestedKey = "td_error"
    reward: NestedKey = "reward"
    done: NestedKey = "done"
    terminated: NestedKey = "terminated"


@dataclass
class DiscreteKeys(TransitionKeys):
    """The keys of a loss that takes the best of discrete actions."""

    action_mask: NestedKey = "action_mask"
