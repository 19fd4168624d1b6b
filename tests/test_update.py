"""Update: optimizers, schedules, targets, clipping, state, compilation."""

from __future__ import annotations

import math
from copy import deepcopy

import pytest
import torch
from losses.examples import continuous_batch, iql
from torchrl.objectives import SACLoss, SoftUpdate

from composerl.bookkeeping.trees import load_tree, save_tree
from composerl.envs.spaces import Spaces
from composerl.modules import tanh_gaussian_actor, twin_q
from composerl.optim import constant, lr_schedule, step
from composerl.update import Update, cosine, linear

BATCHES = [continuous_batch() + 0.1 * i for i in range(12)]
for batch in BATCHES:
    for key in ("terminated", "truncated", "done"):
        batch["next", key] = continuous_batch()["next", key]


def by_hand(loss, steps, lr=3e-4, tau=0.005, clip=None):
    """The same training with nothing but torch: separate sums, Adam, clip, polyak."""
    optimizer = torch.optim.Adam(loss.parameters(), lr)
    for batch in BATCHES[:steps]:
        out = loss(batch.clone())
        optimizer.zero_grad()
        (out["loss_actor"] + out["loss_qvalue"] + out["loss_value"]).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(loss.parameters(), clip)
        optimizer.step()
        with torch.no_grad():
            pairs = zip(
                loss.target_qvalue_network.parameters(),
                loss.qvalue_network.parameters(),
                strict=True,
            )
            for target, source in pairs:
                target.copy_((1 - tau) * target + tau * source)
    return loss


def assert_same(a, b, tolerance=1e-6):
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        torch.testing.assert_close(
            x, y, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("clip", [None, 0.5])
def test_update_is_adam_plus_polyak(clip):
    loss, _ = iql()
    expected = by_hand(deepcopy(loss), 12, tau=0.1, clip=clip)
    update = Update(loss, tau=0.1, max_grad_norm=clip)
    for batch in BATCHES:
        update(batch.clone())
    assert_same(loss, expected)


def test_default_has_one_fused_adam_and_moves_targets():
    loss, batch = iql()
    update = Update(loss)
    (optimizer,) = update.optimizers
    assert isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups[0]["fused"]
    before = deepcopy(loss.target_qvalue_network.state_dict())
    update(batch)
    after = loss.target_qvalue_network.state_dict()
    assert any(not torch.equal(before[k], after[k]) for k in before)


def test_fused_adam_is_torch_s_own_to_the_bit():
    from composerl.optim.adam import FusedAdam

    torch.manual_seed(0)
    start = [torch.randn(5, 3), torch.randn(7), torch.randn(2, 2)]
    options = {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}
    results = []
    for make in (FusedAdam, lambda p, **o: torch.optim.Adam(p, fused=True, **o)):
        params = [torch.nn.Parameter(x.clone()) for x in start]
        optimizer = make(params, **options)
        generator = torch.Generator().manual_seed(1)
        for i in range(20):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            if i % 3 == 0:
                params[1].grad = None  # a parameter that this step does not reach
            optimizer.step()
        results.append((params, optimizer.state_dict()))
    (mine, my_state), (theirs, their_state) = results
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    for index, state in their_state["state"].items():
        for key, value in state.items():
            assert torch.equal(value, my_state["state"][index][key])
    # and each loads the other's state
    FusedAdam(mine, **options).load_state_dict(their_state)
    torch.optim.Adam(mine, fused=True, **options).load_state_dict(my_state)


def test_metrics_are_detached_and_complete():
    loss, batch = iql()
    metrics = Update(loss, lr=1e-3)(batch.clone())
    assert set(metrics.keys()) == {
        "loss_actor", "loss_qvalue", "loss_value", "entropy", "pred_value", "grad_norm", "lr",
    }  # fmt: skip
    assert not any(value.requires_grad for value in metrics.values())
    assert metrics["lr"].item() == pytest.approx(1e-3)
    fresh, _ = iql()
    out = fresh(batch.clone())
    sum(out[k] for k in ("loss_actor", "loss_qvalue", "loss_value")).backward()
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in fresh.parameters()))
    assert metrics["grad_norm"].item() == pytest.approx(norm, rel=1e-5)


def test_global_norm_of_large_and_small_tensors():
    from composerl.update import global_norm

    torch.manual_seed(0)
    for shapes in ([(100, 100), (3, 5), (7,), ()], [(2, 2)], [(80, 80)]):
        tensors = [torch.randn(shape) for shape in shapes]
        torch.testing.assert_close(global_norm(tensors), torch.nn.utils.get_total_norm(tensors))


def test_rates_and_schedules_by_network():
    loss, batch = iql()
    update = Update(
        loss,
        lr={"actor_network": 1e-2, "default": 1e-3},
        schedule={"actor_network": cosine(4), "qvalue_network": linear(4, final=0.5)},
    )
    seen = [update(batch.clone()) for _ in range(6)]
    actor = [m["lr_actor_network"].item() / 1e-2 for m in seen]
    # half a cosine: (1 + cos(pi n / 4)) / 2 for n = 0..4, then 0
    assert actor == pytest.approx([1, 0.8535534, 0.5, 0.1464466, 0, 0], abs=1e-6)
    critic = [m["lr_qvalue_network"].item() / 1e-3 for m in seen]
    assert critic == pytest.approx([1, 0.875, 0.75, 0.625, 0.5, 0.5])
    assert [m["lr"].item() for m in seen] == pytest.approx([1e-3] * 6)
    two = [cosine(4, 2)(n) for n in (0, 2, 4, 5, 6, 9)]
    assert two == pytest.approx([1, 0.5, 1, 0.5, 0, 0])


def test_schedules_by_name():
    """Factors after n updates, over a phase of 8 and one of 4."""
    at = (0, 1, 2, 4, 6, 7, 8, 10, 11, 12, 99)
    assert [lr_schedule("constant", 8, 4)(n) for n in at] == [1] * len(at)
    assert [lr_schedule("linear", 8, 4)(n) for n in at] == [
        1, 7 / 8, 6 / 8, 1 / 2, 2 / 8, 1 / 8, 1, 1 / 2, 1 / 4, 0, 0,
    ]  # fmt: skip
    assert [lr_schedule("step", 8, 4)(n) for n in at] == [
        1, 1, 1 / 2, 1 / 4, 1 / 8, 1 / 8, 1, 1 / 4, 1 / 8, 1 / 8, 1 / 8,
    ]  # fmt: skip
    assert [lr_schedule("cosine", 8, 4)(n) for n in at] == [cosine(8, 4)(n) for n in at]
    assert [lr_schedule("linear", 7)(n) for n in range(9)] == [linear(7)(n) for n in range(9)]
    assert [step(8)(n) for n in at] == [lr_schedule("step", 8)(n) for n in at]
    assert constant()(5) == 1
    assert lr_schedule("cosine", 0, 4)(0) == 1
    with pytest.raises(ValueError, match="one of constant, linear, cosine, step, got 'stairs'"):
        lr_schedule("stairs", 3)


def test_schedule_at_zero_freezes_only_its_network():
    loss, batch = iql()
    update = Update(loss, schedule={"actor_network": lambda n: 0.0})
    before = deepcopy(loss.state_dict())
    update(batch)
    for name, value in loss.named_parameters():
        assert torch.equal(value, before[name]) == name.startswith("actor_network"), name


def test_several_optimizers():
    loss, batch = iql()
    actor = torch.optim.RMSprop(loss.actor_network.parameters(), lr=1e-2)
    rest = torch.optim.Adam(
        [*loss.qvalue_network.parameters(), *loss.value_network.parameters()], lr=1e-3
    )
    expected = deepcopy(loss)
    out = expected(batch.clone())
    for key, parameters, make in (
        ("loss_actor", expected.actor_network, lambda p: torch.optim.RMSprop(p, lr=1e-2)),
        ("loss_qvalue", expected.qvalue_network, lambda p: torch.optim.Adam(p, lr=1e-3)),
        ("loss_value", expected.value_network, lambda p: torch.optim.Adam(p, lr=1e-3)),
    ):
        optimizer = make(parameters.parameters())
        out[key].backward(retain_graph=True)
        optimizer.step()
    Update(loss, optimizer=[actor, rest], target=None)(batch)
    for name in ("actor_network", "qvalue_network", "value_network"):
        assert_same(getattr(loss, name), getattr(expected, name))


# ---- delays and torch's schedulers ---------------------------------------------------------------

DELAY = {"actor_network": 2, "target_": 3}


def delayed_by_hand(loss, steps, lr=1e-2, tau=0.1):
    """Adam for each part, whose gradients are dropped unless it is its turn."""
    optimizer = torch.optim.Adam(loss.parameters(), lr)
    actor = set(loss.actor_network.parameters())
    for n, batch in enumerate(BATCHES[:steps], 1):
        out = loss(batch.clone())
        optimizer.zero_grad()
        (out["loss_actor"] + out["loss_qvalue"] + out["loss_value"]).backward()
        for p in actor if n % 2 else ():
            p.grad = None
        optimizer.step()
        critics = loss.target_qvalue_network.parameters(), loss.qvalue_network.parameters()
        for target, source in zip(*critics, strict=True) if n % 3 == 0 else ():
            target.data.lerp_(source.data, tau)
    return loss


def test_networks_and_targets_wait_for_their_turn():
    loss, _ = iql()
    expected = delayed_by_hand(deepcopy(loss), 7)
    update = Update(loss, lr=1e-2, tau=0.1, every=DELAY)
    for n, batch in enumerate(BATCHES[:7], 1):
        before = deepcopy(loss.state_dict())
        metrics = update(batch.clone())
        assert metrics["loss_actor"] != 0  # it is told all the same
        for name, p in torch.nn.Module.named_parameters(loss):  # of the targets, too
            period = next((k for start, k in DELAY.items() if name.startswith(start)), 1)
            assert torch.equal(p, before[name]) == bool(n % period), (n, name)
    assert_same(loss, expected)
    steps = [update.optimizers[0].state[p]["step"].item() for p in loss.parameters()]
    actor = len([*loss.actor_network.parameters()])
    assert sorted(steps) == [3] * actor + [7] * (len(steps) - actor)


def test_delays_go_on_where_they_were():
    whole, _ = iql()
    update = Update(whole, every=DELAY)
    for batch in BATCHES:
        update(batch.clone())
    first, _ = iql()
    half = Update(first, every=DELAY)
    for batch in BATCHES[:5]:
        half(batch.clone())
    second, _ = iql()
    rest = Update(second, every=DELAY)
    rest.load_state_dict(deepcopy(half.state_dict()))
    for batch in BATCHES[5:]:
        rest(batch.clone())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name


def test_a_smaller_batch_of_a_compiled_update_is_computed_eagerly(tmp_path):
    """It counts in Adam like the others, and a resumed update knows which are the smaller ones."""
    torch._dynamo.reset()
    eager_loss, _ = iql()
    losses = [deepcopy(eager_loss), deepcopy(eager_loss)]
    eager = Update(eager_loss, lr=1e-2)
    updates = [Update(loss, lr=1e-2, compile=True) for loss in losses]
    for update in updates:
        update._graph._compiled = torch.compile(
            update._graph._step, fullgraph=True, dynamic=False, backend="eager"
        )
    counter = torch._dynamo.utils.counters
    start = counter["stats"]["unique_graphs"]
    for n, batch in enumerate(BATCHES[:6]):
        rows = batch[:2] if n % 2 else batch
        a, b = eager(rows.clone()), updates[0](rows.clone())
        torch.testing.assert_close(a.to_dict(), b.to_dict(), rtol=1e-4, atol=1e-5)
    assert counter["stats"]["unique_graphs"] - start == 1
    assert_same(eager_loss, losses[0], 1e-4)
    steps = eager.state_dict()["optimizers"][0]["state"]
    state = deepcopy(updates[0].state_dict())
    assert [s["step"] for s in state["optimizers"][0]["state"].values()] == [
        s["step"] for s in steps.values()
    ]
    updates[1].load_state_dict(state)
    updates[1](BATCHES[7][:2].clone())
    assert counter["stats"]["unique_graphs"] - start == 1


def test_compiled_delays_have_a_graph_for_each_choice_and_no_more():
    """With 2 and 3 neither, one, the other or both are due."""
    torch._dynamo.reset()
    eager_loss, _ = iql()
    compiled_loss = deepcopy(eager_loss)
    eager = Update(eager_loss, lr=1e-2, every=DELAY)
    compiled = Update(compiled_loss, lr=1e-2, every=DELAY, compile=True)
    compiled._graph._compiled = torch.compile(
        compiled._graph._step, fullgraph=True, backend="eager"
    )
    counter = torch._dynamo.utils.counters
    start = counter["stats"]["unique_graphs"]
    for n, batch in enumerate(BATCHES, 1):
        a, b = eager(batch.clone()), compiled(batch.clone())
        torch.testing.assert_close(a.to_dict(), b.to_dict(), rtol=1e-4, atol=1e-5)
        if n == 6:
            assert counter["stats"]["unique_graphs"] - start == 4
    assert counter["stats"]["unique_graphs"] - start == 4
    assert_same(eager_loss, compiled_loss, 1e-4)
    states = [update.state_dict()["optimizers"][0]["state"] for update in (eager, compiled)]
    steps = [{i: s["step"].item() for i, s in state.items()} for state in states]
    assert steps[0] == steps[1]


def scheduled(kind, loss, compile=False):
    """An Update by torch's optimizers and schedulers alone; two of each."""
    actor = torch.optim.Adam(loss.actor_network.parameters(), lr=1e-2)
    networks = (loss.qvalue_network, loss.value_network)
    rest = torch.optim.Adam([p for net in networks for p in net.parameters()], lr=1e-3)
    schedulers = [kind(actor), torch.optim.lr_scheduler.MultiStepLR(rest, [2, 5], gamma=0.1)]
    return Update(loss, optimizer=[actor, rest], schedule=schedulers, compile=compile)


def rates(update):
    return [group["lr"] for optimizer in update.optimizers for group in optimizer.param_groups]


@pytest.mark.filterwarnings("error:.*lr_scheduler")
@pytest.mark.parametrize(
    "kind",
    [
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (n + 1)),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
        lambda optimizer: torch.optim.lr_scheduler.SequentialLR(
            optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3),
                torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            ],
            [3],
        ),
    ],
)
def test_torch_s_schedulers_step_at_each_update_and_are_saved(kind, tmp_path):
    """The rates are those of the schedulers alone, also after a checkpoint on the disk."""
    params = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    alone = [torch.optim.Adam([p], lr=lr) for p, lr in zip(params, (1e-2, 1e-3), strict=True)]
    schedulers = [kind(alone[0]), torch.optim.lr_scheduler.MultiStepLR(alone[1], [2, 5], gamma=0.1)]
    update = scheduled(kind, iql()[0])
    for n, batch in enumerate(BATCHES[:7]):
        assert rates(update) == pytest.approx([opt.param_groups[0]["lr"] for opt in alone])
        if n == 4:
            save_tree(tmp_path / "state", "checkpoint", update.state_dict())
            update = scheduled(kind, iql()[0])
            update.load_state_dict(load_tree(tmp_path / "state", "checkpoint"))
        update(batch.clone())
        for optimizer, scheduler in zip(alone, schedulers, strict=True):
            optimizer.step()
            scheduler.step()


@pytest.mark.filterwarnings("error:.*lr_scheduler")
def test_torch_s_schedulers_of_a_compiled_update():
    torch._dynamo.reset()
    losses = [iql()[0], iql()[0]]

    def kind(optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)

    eager, compiled = (
        scheduled(kind, loss, compile=c) for loss, c in zip(losses, (0, 1), strict=True)
    )
    compiled._graph._compiled = torch.compile(
        compiled._graph._step, fullgraph=True, backend="eager"
    )
    for batch in BATCHES[:5]:
        eager(batch.clone())
        compiled(batch.clone())
    assert rates(eager) == rates(compiled)
    assert_same(*losses, 1e-4)


def test_schedulers_that_cannot_be_stepped_are_refused():
    loss, _ = iql()
    adam, other = (torch.optim.Adam(loss.parameters()) for _ in "ab")
    constant = torch.optim.lr_scheduler.ConstantLR(adam)
    with pytest.raises(ValueError, match="optimizer of ConstantLR is not the Update's"):
        Update(loss, optimizer=other, schedule=constant)
    with pytest.raises(ValueError, match="optimizer of ConstantLR is not the Update's"):
        Update(loss, schedule=constant)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(adam)
    with pytest.raises(ValueError, match="ReduceLROnPlateau looks at a metric"):
        Update(loss, optimizer=adam, schedule=plateau)
    with pytest.raises(ValueError, match="several schedules must all be"):
        Update(loss, optimizer=adam, schedule=[constant, cosine(3)])


def test_torchrl_updater_and_stock_loss():
    spaces = Spaces(obs_shape=(3,), low=(-2.0, -1.0), high=(2.0, 1.0))
    torch.manual_seed(0)
    loss = SACLoss(tanh_gaussian_actor(spaces, (8,)), twin_q(spaces, (8,)), num_qvalue_nets=2)
    loss.make_value_estimator(gamma=0.99)
    update = Update(loss)
    before = loss.target_qvalue_network_params.clone()
    first = update(continuous_batch())
    assert torch.isfinite(first["grad_norm"])
    moved = loss.target_qvalue_network_params
    assert any((before[k] != moved[k]).any() for k in before.keys(True, True))
    mine, batch = iql()
    theirs = Update(mine, target=SoftUpdate(mine, tau=0.5))
    theirs(batch)
    target = mine.target_qvalue_network[0].module.trunk[0].weight
    fresh = iql()[0].qvalue_network[0].module.trunk[0].weight
    online = mine.qvalue_network[0].module.trunk[0].weight
    torch.testing.assert_close(target, (fresh + online) / 2)


def test_state_dict_goes_on_exactly():
    whole, _ = iql()
    update = Update(whole, lr=1e-3, schedule=cosine(20))
    for batch in BATCHES:
        update(batch.clone())
    first, _ = iql()
    half = Update(first, lr=1e-3, schedule=cosine(20))
    for batch in BATCHES[:6]:
        half(batch.clone())
    state = deepcopy(half.state_dict())
    second, _ = iql()
    rest = Update(second, lr=1e-3, schedule=cosine(20))
    rest.load_state_dict(state)
    for batch in BATCHES[6:]:
        metrics = rest(batch.clone())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert metrics["lr"].item() == pytest.approx(1e-3 * cosine(20)(11))


def test_compiled_equals_eager_and_shares_its_state(tmp_path, monkeypatch):
    """One graph for loss, backward, Adam, clip, schedule and targets: the same numbers."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    eager_loss, _ = iql()
    compiled_loss = deepcopy(eager_loss)
    options = {"lr": 1e-2, "schedule": {"actor_network": cosine(12)}, "max_grad_norm": 0.5}
    eager, compiled = Update(eager_loss, **options), Update(compiled_loss, **options, compile=True)
    counter = torch._dynamo.utils.counters
    for i, batch in enumerate(BATCHES[:8]):
        a, b = eager(batch.clone()), compiled(batch.clone())
        torch.testing.assert_close(a.to_dict(), b.to_dict(), rtol=1e-4, atol=1e-5)
        if i == 1:
            graphs = counter["stats"]["unique_graphs"]
    assert counter["stats"]["unique_graphs"] == graphs, "a change of the rate recompiled the graph"
    assert_same(eager_loss, compiled_loss, 1e-4)
    # an eager update goes on from the compiled one's state
    again_loss, _ = iql()
    again = Update(again_loss, **options)
    again.load_state_dict(deepcopy(compiled.state_dict()))
    for batch in BATCHES[8:]:
        eager(batch.clone())
        again(batch.clone())
        compiled(batch.clone())
    assert_same(eager_loss, again_loss, 1e-4)
    assert_same(eager_loss, compiled_loss, 1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 0.0}, "tau"),
        ({"max_grad_norm": -1}, "max_grad_norm"),
        ({"lr": -1.0}, "lr"),
        ({"lr": math.nan}, "lr"),
        ({"lr": {"critic": 1e-3, "default": 1e-3}}, "'critic'.*actor_network"),
        ({"lr": {"actor_network": 1e-3}}, "default"),
        ({"every": {"actor_network": 0}}, r"every\['actor_network'\] .* at least 1, got 0"),
        ({"every": {"critic": 2}}, "under 'critic'.*actor_network.*target_qvalue_network"),
        ({"every": {"target_": 2}, "target": None}, "under 'target_'"),
        ({"every": {"": 2}}, "no network that moves at each update"),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(ValueError, match=message):
        Update(iql()[0], **options)


def test_optimizers_must_own_each_parameter_once():
    loss, _ = iql()
    with pytest.raises(ValueError, match="no optimizer has"):
        Update(loss, optimizer=torch.optim.Adam(loss.actor_network.parameters()))
    adam = torch.optim.Adam(loss.parameters())
    with pytest.raises(ValueError, match="more than one"):
        Update(loss, optimizer=[adam, torch.optim.Adam(loss.parameters())])


def test_unreduced_loss_is_refused():
    loss, _ = iql()
    loss.reduction = "none"
    with pytest.raises(ValueError, match="reduction"):
        Update(loss)


# ---- what a review found ------------------------------------------------------------------


@pytest.mark.parametrize("how", ["cast", "copy"])
def test_targets_move_after_a_cast_or_a_copy(how):
    loss, batch = iql()
    update = Update(loss, tau=0.5)
    if how == "cast":
        loss.double()
        batch = batch.apply(lambda x: x.double() if x.is_floating_point() else x)
    else:
        update = deepcopy(update)
    before = deepcopy(update.loss.target_qvalue_network.state_dict())
    update(batch)
    after = update.loss.target_qvalue_network.state_dict()
    assert all(not torch.equal(before[key], after[key]) for key in before)


def test_foreign_gradients_do_not_enter():
    loss, batch = iql()
    clean = Update(deepcopy(loss))(batch.clone())
    (100 * loss(batch.clone())["loss_value"]).backward()
    assert torch.equal(Update(loss)(batch.clone())["grad_norm"], clean["grad_norm"])


def test_unknown_target_is_refused():
    with pytest.raises(ValueError, match="target must be 'soft'"):
        Update(iql()[0], target="hard")


def test_rates_of_own_optimizers_are_left_alone():
    loss, batch = iql()
    adam = torch.optim.Adam(loss.parameters(), lr=1e-3)
    update = Update(loss, optimizer=adam)
    adam.param_groups[0]["lr"] = 1e-4
    assert update(batch.clone())["lr"].item() == pytest.approx(1e-4)
    again = Update(loss, optimizer=torch.optim.Adam(loss.parameters(), lr=1e-3))
    again.load_state_dict(update.state_dict())
    assert again(batch.clone())["lr"].item() == pytest.approx(1e-4)


def test_fused_adam_refuses_what_it_does_not_do():
    from composerl.optim.adam import FusedAdam

    for option in ("amsgrad", "maximize"):
        with pytest.raises(ValueError, match="amsgrad"):
            FusedAdam([torch.nn.Parameter(torch.zeros(1))], **{option: True})


def test_compiled_step_counts_on_from_a_used_optimizer(monkeypatch):
    """Bias correction follows the optimizer's own count, not the Update's."""
    torch._dynamo.reset()
    results = []
    for compile in (False, True):
        loss, batch = iql()
        adam = torch.optim.Adam(loss.parameters(), lr=1e-2)
        for _ in range(5):
            sum(v for k, v in loss(batch.clone()).items() if k.startswith("loss_")).backward()
            adam.step()
            adam.zero_grad()
        update = Update(loss, optimizer=adam, compile=compile)
        if compile:
            update._graph._compiled = torch.compile(
                update._graph._step, fullgraph=True, backend="eager"
            )
        update(batch.clone())
        results.append((loss, update.state_dict()["optimizers"][0]["state"][0]["step"].item()))
    (a, steps_a), (b, steps_b) = results
    assert steps_a == steps_b == 6
    assert_same(a, b, 1e-5)


def test_reset_parameters_resets_networks_and_targets():
    loss, _ = iql()
    before = deepcopy(loss.state_dict())
    loss.reset_parameters_recursive()
    after = loss.state_dict()
    assert not torch.equal(
        before["value_network.module.0.weight"], after["value_network.module.0.weight"]
    )
    for name, value in loss.qvalue_network.state_dict().items():
        assert torch.equal(value, loss.target_qvalue_network.state_dict()[name])
