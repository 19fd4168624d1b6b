"""Pictures: PNG files that others can read, strips that show what they say."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from losses.examples import IMAGES, TINY, record_batch
from PIL import Image
from test_run import Config, actor
from wandb_reader import read_wandb

from composerl import Run
from composerl.analysis.pictures import open_loop
from composerl.bookkeeping.images import write_mp4, write_png
from composerl.bookkeeping.metrics import read_metrics
from composerl.modules import world_model


def read_png(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        return np.array(image)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3)])
def test_png_round_trip(shape, tmp_path):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    path = write_png(tmp_path / "image.png", image)
    np.testing.assert_array_equal(read_png(path), image)


@pytest.mark.parametrize("image", [np.zeros((2, 2)), np.zeros((2, 2, 4), np.uint8)])
def test_what_is_no_image_is_refused(image, tmp_path):
    with pytest.raises(ValueError, match="a PNG needs uint8 of shape"):
        write_png(tmp_path / "image.png", image)


def strip(**options):
    torch.manual_seed(0)
    world = world_model(IMAGES, TINY)
    with torch.no_grad():
        world.decoder.layers[-1].weight.normal_()
    batch = record_batch()
    return world, batch, open_loop(world, batch, **options)


def test_the_strip_shows_truth_model_and_error():
    """Two sequences of 5 frames of 16 x 16, three lines each, each with a mark above."""
    world, batch, sheet = strip(rows=2, shown=2)
    assert sheet.shape == (2 * 3 * 17, 5 * 16, 3)
    assert sheet.dtype == np.uint8
    blocks = sheet[..., 0].reshape(2, 3, 17, 5, 16).transpose(0, 1, 3, 2, 4)
    truth, model, error = (blocks[:, i, :, 1:] for i in range(3))
    np.testing.assert_array_equal(truth, batch["observation"][:2, :, 0].numpy())
    expected = (model.astype(float) - truth + 255) / 2
    np.testing.assert_allclose(error, expected, atol=1)
    # shown: two frames of a sequence and two of each episode that starts in it (record 3 of row 0)
    marks = blocks[:, :, :, 0].min((1, 3)) == 255
    np.testing.assert_array_equal(marks, [[1, 1, 0, 1, 1], [1, 1, 0, 0, 0]])
    # what was shown is the posterior's picture
    seen = world.observe(world.inputs(batch["observation"][:2, :2]), batch["action"][:2, :2],
                         batch["first"][:2, :2], sample=False)  # fmt: skip
    picture = world.decoder(seen.latent.features.flatten(0, 1)).clamp(0, 1).detach() * 255
    np.testing.assert_allclose(
        model[:, :2].reshape(4, 16, 16), picture[:, 0].round().numpy(), atol=1
    )


def test_what_is_imagined_depends_on_no_later_frame():
    world, batch, sheet = strip(rows=2, shown=2)
    batch["observation"][1, 2:] = 0
    later = open_loop(world, batch, rows=2, shown=2)
    model = slice(4 * 17, 5 * 17)  # of the second sequence, which has no other first frame
    np.testing.assert_array_equal(later[model], sheet[model])


def test_a_run_saves_images_when_evaluations_are_due(tmp_path):
    image = np.full((2, 3, 3), 7, np.uint8)

    def train(out, draw, wandb):
        run = Run(Config(out=out, wandb=wandb), name="toy")
        policy, drawn = actor(), []
        for _ in run.steps(6):
            if draw:
                run.image("strip", lambda: (torch.rand(9), image)[1])
            drawn.append(torch.rand(()).item())
            run.evaluate(policy)
        run.finish(policy)
        return drawn

    with_images = train(tmp_path / "a", True, "offline")
    assert with_images == train(tmp_path / "b", False, "disabled")
    found = sorted((tmp_path / "a" / "images").iterdir())
    assert [path.name for path in found] == ["strip-00000003.png", "strip-00000006.png"]
    np.testing.assert_array_equal(read_png(found[0]), image)
    assert not (tmp_path / "b" / "images").exists()
    (logged,) = read_wandb(tmp_path / "a")
    pictures = [row for row in logged.history if "images/strip" in str(row)]
    assert [row["step"] for row in pictures] == [3, 6]


def test_a_film_as_mp4_has_all_frames_and_even_sides(tmp_path):
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    frames = np.zeros((7, 33, 201, 3), np.uint8)
    frames[3:, :, :100] = 255
    path = write_mp4(tmp_path / "a.mp4", frames, fps=10)
    read = ffmpeg.read_frames(str(path))
    about = next(read)
    assert about["size"] == (202, 34)
    assert about["fps"] == 10
    shown = [np.frombuffer(frame, np.uint8).reshape(34, 202, 3) for frame in read]
    assert [int(frame[16, 50, 0]) // 128 for frame in shown] == [0, 0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize(("kind", "begin"), [("gif", b"GIF89a"), ("mp4", b"\0\0\0\x20ftyp")])
def test_every_evaluation_can_be_filmed(tmp_path, kind, begin):
    """And what is filmed changes no number."""
    pytest.importorskip("pygame")
    pytest.importorskip("imageio_ffmpeg")
    for video in ("every", "off"):
        config = Config(out=tmp_path / video, steps=4, eval_every=2, eval_episodes=1,
                        video=video, video_format=kind, wandb="disabled")  # fmt: skip
        run, policy = Run(config), actor()
        run.evaluate(policy)
        for _ in run.steps(4):
            run.log({"draw": torch.rand(())})
            run.evaluate(policy)
        run.finish(policy)
    films = sorted(path.name for path in (tmp_path / "every" / "images").iterdir())
    assert films == [f"episode-{step:08d}.{kind}" for step in (0, 2, 4)]
    assert all(
        (tmp_path / "every" / "images" / name).read_bytes().startswith(begin) for name in films
    )
    rows = [read_metrics(tmp_path / video / "metrics.jsonl") for video in ("every", "off")]
    every, off = ([{k: v for k, v in row.items() if "time/" not in k} for row in r] for r in rows)
    assert every == off


def test_mp4_that_cannot_be_written_is_told_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("composerl.bookkeeping.images.find_spec", lambda name: None)
    config = Config(out=tmp_path / "run", steps=4, video="on", video_format="mp4", wandb="disabled")
    with pytest.raises(ValueError, match=r"MP4 needs imageio-ffmpeg, .*composerl\[video\]"):
        Run(config)
