"""The notebook of first steps: its cells as plain Python, and executed by a kernel."""

from __future__ import annotations

import ast
import base64
import json

import pytest

from composerl.catalog import recipes_directory


def test_every_cell_of_the_notebook_works(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    notebook = json.loads((recipes_directory() / "first_steps.ipynb").read_text())
    assert notebook["nbformat"] == 4
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            exec(compile(ast.Module(body, []), "cell", "exec"), names)
            if last is not None:  # what a notebook displays
                shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))
    table, figure, _, action = shown
    assert [row["seed"] for row in table] == [0, 1]
    assert "<th>final</th>" in table._repr_html_()
    assert figure.axes[0].get_xlabel() == "updates"
    assert figure.axes[0].lines[-1].get_xdata().tolist() == [0, 100, 200]
    assert action.shape == (1,)


def test_a_kernel_shows_table_and_picture(tmp_path):
    """As somebody sees them who has not imported pyplot."""
    pytest.importorskip("matplotlib")
    client = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(recipes_directory() / "first_steps.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    client.NotebookClient(notebook, timeout=300, resources=resources).execute()
    shown = [
        output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    table, figure, *_ = shown
    assert "<th>final</th>" in table["text/html"]
    assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG")
