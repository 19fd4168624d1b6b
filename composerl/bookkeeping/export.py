"""Policies as files for other programs: ONNX, and torch's pt2."""

import copy
import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from composerl import __version__
from composerl._files import replace_file
from composerl.bookkeeping.acting import greedy
from composerl.bookkeeping.evaluation import Player
from composerl.bookkeeping.exported import Act, each, example_inputs, require_same
from composerl.envs.arguments import env_name
from composerl.envs.masks import MASK

__all__ = ["FORMATS", "export_policy"]

FORMATS = ("onnx", "pt2")


class _Greedy(nn.Module):
    """Observations, and masks if any, to deterministic actions: all that a file has to know."""

    def __init__(self, policy: Player) -> None:
        super().__init__()
        # A copy: the policy may be on another device, or about to be trained further.
        self.actor = copy.deepcopy(policy.actor).cpu().eval()
        self.spaces = policy.spaces

    def forward(self, observation: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            return cast(Any, self.actor).greedy(observation, mask)
        return greedy(self.actor, observation, self.spaces)


class _Remembering(nn.Module):
    """Observations, where episodes start, and a state, to actions and the next state."""

    def __init__(self, policy: Player) -> None:
        super().__init__()
        self.actor = copy.deepcopy(policy.actor).cpu().eval()
        self.names = list(cast(Any, self.actor).initial(1))

    def forward(self, observation: Any, first: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        before = dict(zip(self.names, state, strict=True))
        action, after = cast(Any, self.actor).greedy(observation, before, first)
        # A graph gives nothing out twice, and the last action may be the state's as well.
        return action, *(after[name].clone() for name in self.names)


def export_policy(policy: Player, path: Path, format: str = "onnx") -> Path:
    """Write ``policy`` to ``path``, if what was made of it acts as ``policy.predict`` does."""
    if format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {format!r}")
    if path.is_dir() or not path.parent.is_dir():
        problem = "is a directory" if path.is_dir() else "is in a directory that does not exist"
        raise ValueError(f"{path} {problem}, expected a file to write")
    if getattr(policy.actor, "sampled", False):
        raise ValueError(
            "a policy that draws its actions cannot be exported; use composerl.load(run).predict"
        )
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if not find_spec(name)]
    if format == "onnx" and missing:
        raise ValueError(
            f"ONNX needs {', '.join(missing)}, not installed: pip install 'composerl[export]'"
        )
    content, act = (_onnx if format == "onnx" else _pt2)(policy)
    require_same(policy, act, format)
    replace_file(path, lambda file: file.write_bytes(content))
    return path


def _program(policy: Player) -> torch.export.ExportedProgram:
    example = tuple(each(torch.from_numpy, given) for given in example_inputs(policy, 2))
    try:
        with torch.no_grad(), _quiet():
            rows = {0: torch.export.Dim("batch")}
            sizes: Any = (rows,) * len(example)
            if not policy.recurrent:
                return torch.export.export(_Greedy(policy), example, dynamic_shapes=sizes)
            seen = each(lambda _: rows, example[0])
            sizes = (seen, rows, (rows,) * (len(example) - 2))
            return torch.export.export(_Remembering(policy), example, dynamic_shapes=sizes)
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"torch cannot export this policy as a graph: {reason}") from error


def _names(policy: Player) -> tuple[list[str], list[str]]:
    """Of inputs and outputs: a state's parts are ``state_...`` and ``next_state_...``.

    Images and vectors together are ``observation_...``, each by its name.
    """
    if not policy.recurrent:
        return ["observation", *([MASK] if policy.spaces.masked else [])], ["action"]
    parts = [f"state_{name}" for name in cast(Any, policy.actor).initial(1)]
    layout = policy.spaces.obs_layout
    seen = [f"observation_{name}" for name, _ in layout] if layout else ["observation"]
    return [*seen, "first", *parts], ["action", *(f"next_{part}" for part in parts)]


def _pt2(policy: Player) -> tuple[bytes, Act]:
    program = _program(policy)
    module = program.module()
    file = io.BytesIO()
    torch.export.save(program, file)

    def act(*inputs: np.ndarray) -> list[np.ndarray]:
        with torch.no_grad():
            outputs = module(*(each(torch.from_numpy, given) for given in inputs))
        return [x.numpy() for x in ((outputs,) if isinstance(outputs, Tensor) else outputs)]

    return file.getvalue(), act


def _onnx(policy: Player) -> tuple[bytes, Act]:
    import onnxruntime

    inputs, outputs = _names(policy)
    with _quiet():
        names: dict[str, Any] = {"input_names": inputs, "output_names": outputs}
        made = torch.onnx.export(_program(policy), dynamo=True, verbose=False, **names)
    assert made is not None  # what dynamo=True promises
    content = _labelled(made.model_proto, policy).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, ["CPUExecutionProvider"])

    def act(*given: np.ndarray) -> list[np.ndarray]:
        seen, *rest = given
        arrays = [*(seen.values() if isinstance(seen, dict) else [seen]), *rest]
        return session.run(outputs, dict(zip(inputs, arrays, strict=True)))

    return content, act


def _labelled(model: Any, policy: Player) -> Any:
    """The model with its batch axis named, and what it is for among its metadata; checked."""
    import onnx

    graph = model.graph
    symbol = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output, *graph.value_info):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param == symbol:
                axis.dim_param = "batch"
    spaces = policy.spaces
    actions: dict[str, Any] = {"action_low": spaces.low, "action_high": spaces.high}
    if spaces.num_actions is not None:
        actions = {"num_actions": spaces.num_actions}
    parts = None if spaces.obs_layout is None else dict(spaces.obs_layout)
    # A run's own environment is not imported, but known by its name.
    env = policy.trained_in if policy.env is None else env_name(policy.env)
    about = {
        "composerl_version": __version__,
        "environment": env,
        "environment_arguments": policy.env_kwargs or None,
        "observation_shape": spaces.obs_shape if parts is None else parts,
        "observation_dtype": spaces.obs_dtype if parts is None else None,
        **actions,
    }
    known = {key: value for key, value in about.items() if value is not None}
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in known.items()}
    onnx.helper.set_model_props(model, texts)
    onnx.checker.check_model(model)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """The exporters' progress reports and warnings are for their own developers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        nowhere = io.StringIO()
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
