"""Following sequences of records with a world model, and the gradients of that, by hand."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from composerl.modules.products import small_products
from composerl.modules.world_parts import EPSILON, UNIFORM, join, tanh

__all__ = ["Inner", "scan", "step_back"]


class Inner(NamedTuple):
    """What is inside of a step, for its gradients: in front of the norms, and the gates."""

    of_deter: Tensor
    of_stoch: Tensor
    mixed: Tensor
    gates: Tensor
    of_both: Tensor


class _Weights(NamedTuple):
    """Of all layers that a step has; norms are in the order of :class:`Inner`."""

    deter_in: Tensor
    deter_bias: Tensor
    stoch_in: Tensor
    stoch_bias: Tensor
    mix: Tensor
    mix_bias: Tensor
    mix_in: Tensor
    gates: Tensor
    gates_bias: Tensor
    posterior_in: Tensor
    posterior_out: Tensor
    posterior_bias: Tensor
    norm_deter: Tensor
    norm_stoch: Tensor
    norm_mixed: Tensor
    norm_both: Tensor


class _Norm:
    """RMSNorm and SiLU of inputs x ``(time, batch, n)``, and what their gradients have of x.

    With :math:`z = x s w, s = 1 / rms(x)`, the gradient of x is :math:`a g - c \\sum b g`.
    """

    def __init__(self, x: Tensor, weight: Tensor) -> None:
        scale = (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt()
        normal = x * scale
        z = normal * weight
        share = z.sigmoid()
        self.out = z * share
        self.slope = share + self.out * (1 - share)
        gain = self.slope * weight
        self.parts = gain * scale, gain * normal / x.shape[-1], normal * scale
        self.normal = normal

    def weight(self, grads: Tensor) -> Tensor:
        """The gradient of the weight, from those of what comes out."""
        return (grads * self.slope * self.normal).sum((0, 1))


def scan(world: Any, look: Callable[..., Any], back: Callable[..., Any], *inputs: Any) -> Any:
    """States, one-hot latents and their probabilities, each ``(batch, time, ...)``.

    Autograd would do the same, in twice the time: it multiplies for the gradients of the weights
    at each step, and adds them up, where here one product is for all steps together.

    Args:
        world: a :class:`~composerl.modules.WorldModel`.
        look: one step, without gradients.
        back: :func:`step_back`, or a compiled version of it.
        inputs: state and latents at first ``(batch, ...)``; for all steps ``(time, batch, ...)``
            whether the state is kept, what actions add, what is seen, and noise or None.
    """
    net = world.recurrence
    weights = _Weights(
        net.deter_in.linear.weight, net.deter_in.linear.bias,
        net.stoch_in.linear.weight, net.stoch_in.linear.bias,
        net.mix.weight, net.mix.bias, net.mix_in.weight, net.gates.weight, net.gates.bias,
        world.posterior_in.weight, world.posterior_out.weight, world.posterior_out.bias,
        net.deter_in.norm.weight, net.stoch_in.norm.weight, net.norm.weight,
        world.posterior_norm.weight,
    )  # fmt: skip
    return _Scan.apply(look, back, *inputs, *weights)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, look: Any, back: Any, *tensors: Any) -> tuple[Tensor, ...]:
        deter, stoch, keep, acted, seen, noise, *weights = tensors
        ctx.back = back
        noises = [None] * len(keep) if noise is None else noise.unbind()
        inside = zip(keep.unbind(), acted.unbind(), seen.unbind(), noises, strict=True)
        states, inner = [], []
        with small_products(len(deter)):
            for parts in inside:
                *state, within = look(deter, stoch, *parts)
                deter, stoch, _ = state
                states.append(state)
                inner.append(within)
        deters, stochs, probs = (torch.stack(x, 1) for x in zip(*states, strict=True))
        kept = [torch.stack(x) for x in zip(*inner, strict=True)]
        ctx.save_for_backward(*tensors[:3], deters, stochs, probs, *kept, *weights)
        return deters, stochs, probs

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        first_deter, first_stoch, keep, deters, stochs, probs, *rest = ctx.saved_tensors
        inner, w = Inner(*rest[:5]), _Weights(*rest[5:])
        blocks, time = len(w.mix), len(keep)
        after, latents, probs = (x.transpose(0, 1) for x in (deters, stochs, probs))
        before = torch.cat([first_deter.unsqueeze(0), after[:-1]]) * keep
        drawn = torch.cat([first_stoch.unsqueeze(0), latents[:-1]]) * keep
        *fronts, gates, last = inner
        norms = [_Norm(*x) for x in zip([*fronts, last], w[-4:], strict=True)]
        soft = probs - UNIFORM / probs.shape[-1]
        opened, stays = _gate_factors(gates, before, blocks)
        each = [opened, stays, soft, soft / (1 - UNIFORM), keep]
        each += [x for norm in norms for x in norm.parts]
        of_deter, of_stoch, of_probs = (x.transpose(0, 1).unbind() for x in grads)
        carried = (torch.zeros_like(first_deter), torch.zeros_like(first_stoch))
        found = []
        factors = list(zip(*(x.unbind() for x in each), strict=True))
        products = (w.deter_in, w.stoch_in, w.mix, w.mix_in, w.gates, w.posterior_in,
                    w.posterior_out)  # fmt: skip
        with small_products(len(first_deter)):
            for t in reversed(range(time)):
                *carried, within = ctx.back(
                    *carried, of_deter[t], of_stoch[t], of_probs[t], products, factors[t]
                )
                found.append(within)
        outs, ins, gates_grads, logits = (
            [torch.stack(x[::-1]) for x in zip(*part, strict=True)]
            for part in zip(*found, strict=True)
        )
        logits_grad, opening = logits[0], gates_grads[0].transpose(0, 1).flatten(1, 2)
        dense = (_product(*x) for x in ((ins[0], before), (ins[1], drawn),
                 (ins[2], torch.cat([norms[0].out, norms[1].out], -1)), (ins[3], after),
                 (logits_grad, norms[3].out)))  # fmt: skip
        of_deter_in, of_stoch_in, of_mix_in, of_posterior_in, of_posterior_out = dense
        mixed = _blocks(ins[2], blocks)
        weights = _Weights(
            of_deter_in, ins[0].sum((0, 1)), of_stoch_in, ins[1].sum((0, 1)),
            _blocks(before, blocks).mT @ mixed, mixed.sum(1, keepdim=True), of_mix_in,
            _blocks(norms[2].out, blocks).mT @ opening, opening.sum(1, keepdim=True),
            of_posterior_in, of_posterior_out, logits_grad.sum((0, 1)),
            *(norm.weight(x) for norm, x in zip(norms, outs, strict=True)),
        )  # fmt: skip
        return None, None, *carried, None, ins[2], ins[3], None, *weights


def step_back(
    deter: Tensor,
    stoch: Tensor,
    of_deter: Tensor,
    of_stoch: Tensor,
    of_probs: Tensor,
    weights: Sequence[Tensor],
    factors: Sequence[Tensor],
) -> tuple[Tensor, Tensor, tuple[tuple[Tensor, ...], ...]]:
    """Gradients of one step: of the state before it, and of what is within.

    Args:
        deter: gradient of the state, as the step after this one has it.
        stoch: of the latents, likewise.
        of_deter: of the state, as the losses have it.
        of_stoch: of the latents, likewise.
        of_probs: of their probabilities, likewise.
        weights: of the layers.
        factors: what the gradients are multiplied with, none of which depends on them.
    """
    deter_in, stoch_in, mix, mix_in, gates_in, posterior_in, posterior_out = weights
    opened, stays, soft, share, keep, *norms = factors
    blocks = len(mix)
    # Latents pass on their gradient to the probabilities; these are a softmax of the logits.
    slope = (of_probs + (stoch + of_stoch).view_as(of_probs)) * soft
    logits = torch.addcmul(slope, share, slope.sum(-1, keepdim=True), value=-1).flatten(1)
    out_both = logits @ posterior_out
    both = _through(out_both, *norms[9:])
    deter = torch.addmm(deter + of_deter, both, posterior_in)
    # The gates: what the state takes in, by reset, candidate and update.
    gates = (_split(deter, blocks).unsqueeze(2) * opened.unflatten(-1, (3, -1))).flatten(2)
    out_mixed = join(gates @ gates_in.mT)
    mixed = _through(out_mixed, *norms[6:9])
    out_deter, out_stoch = (mixed @ mix_in).chunk(2, -1)
    of_deter_in, of_stoch_in = _through(out_deter, *norms[:3]), _through(out_stoch, *norms[3:6])
    before = torch.addcmul(join(_split(mixed, blocks) @ mix.mT), deter, stays)
    before = torch.addmm(before, of_deter_in, deter_in) * keep
    within = ((out_deter, out_stoch, out_mixed, out_both),
              (of_deter_in, of_stoch_in, mixed, both), (gates,), (logits,))  # fmt: skip
    return before, of_stoch_in @ stoch_in * keep, within


def _through(grad: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """The gradient in front of a norm from that behind it, see :class:`_Norm`."""
    return torch.addcmul(grad * a, (grad * b).sum(-1, keepdim=True), c, value=-1)


def _gate_factors(gates: Tensor, before: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Derivatives of the next state by the gates (blocks apart), and by the state before."""
    reset, candidate, update = gates.chunk(3, -1)
    reset, update = reset.sigmoid(), (update - 1).sigmoid()
    new = tanh(reset * candidate)
    inside = update * (1 - new.square()) * reset
    old = before.unflatten(-1, (blocks, -1)).transpose(1, 2)
    of_update = (new - old) * update * (1 - update)
    opened = torch.cat([inside * candidate * (1 - reset), inside, of_update], -1)
    return opened, 1 - update.transpose(1, 2).flatten(2)


def _split(x: Tensor, blocks: int) -> Tensor:
    """``(batch, features)`` as ``(blocks, batch, features of a block)``, a view."""
    return x.unflatten(-1, (blocks, -1)).transpose(0, 1)


def _blocks(x: Tensor, blocks: int) -> Tensor:
    """``(time, batch, features)`` as ``(blocks, time * batch, features of a block)``."""
    return _split(x.flatten(0, 1), blocks)


def _product(grads: Tensor, inputs: Tensor) -> Tensor:
    """The gradient of a layer's weight, over all steps."""
    return grads.flatten(0, 1).t() @ inputs.flatten(0, 1)
