"""Which printed numbers are the training loss or another metric, and which words are the link of a run."""

from __future__ import annotations

import pytest

from cotenant.agent.supervisor.core.printed import link_in, metrics_in
from cotenant.controller.domain import is_link


@pytest.mark.parametrize(
    ("output", "loss"),
    [
        ("epoch 1 step 20 loss 0.31\n", 0.31),
        ("Epoch: 3 | Loss: 1.5e-3 | lr 0.1\n", 1.5e-3),
        ("{'loss': 2.7081, 'grad_norm': 1.2}\n{'loss': 2.5, 'epoch': 0.1}\n", 2.5),
        ("{'train_loss': 4, 'val_loss': 5}\n", 4.0),
        ("step=3 loss=-0.25, acc=.9\n", -0.25),
        ("12%|#  | 3/25 [00:01, loss=0.71]\r", 0.71),
        ("loss 0.5\nval loss 0.9\ntest_loss=0.8\nvalidation loss: 0.7 eval/loss 0.6\n", 0.5),
        ("loss 0.5\nloss 0.4", 0.5),  # It may go on: 0.43.
        ("loss nan\n", None),
        ("a lossless codec 3\nno loss in 3 days\nhair loss\n", None),
        ("", None),
    ],
)
def test_the_last_training_loss_that_was_printed_is_found(output: str, loss: float | None) -> None:
    assert metrics_in(output).get("loss") == loss


def test_much_output_without_a_loss_takes_no_time_worth_speaking_of() -> None:
    """The pattern cannot run away: each part of it is bounded."""
    assert metrics_in("loss " * 4_000 + "loss=" + "1" * 10_000 + "a" * 10_000) == {}


@pytest.mark.parametrize(
    ("output", "metrics"),
    [
        ("epoch 2 val_acc=0.5 acc 0.25\nval_acc=0.75\n", {"acc": 0.25, "val_acc": 0.75}),
        ("{'eval/f1': 0.8, \"top-1\": 91}\n", {"eval/f1": 0.8, "top-1": 91.0}),
        ("accuracy: 91 loss:0.5\nval loss 0.9\n", {"accuracy": 91.0, "loss": 0.5}),
        ("train_loss: 4.0 val_loss: 5.0\n", {"train_loss": 4.0, "loss": 4.0, "val_loss": 5.0}),
        ("took 3 s on localhost:8080 at 12:30:05\n", {}),
        ("acc=0.9", {}),  # It may go on: 0.91.
    ],
)
def test_other_numbers_are_metrics_where_they_surely_have_a_name(
    output: str, metrics: dict[str, float]
) -> None:
    assert metrics_in(output) == metrics


@pytest.mark.parametrize(
    ("output", "metrics"),
    [
        # Settings that are printed once, and results that are no metric's (nanoGPT, pytorch-tutorial).
        ("batch_size = 12\nlearning_rate = 6e-4\nblock_size: 1024\ndropout=0.0\n", {}),
        ("num decayed parameter tensors: 5, with 1,024 parameters\nwill be: 128\n", {}),
        ("Accuracy of the network on the 10000 test images: 92 %\n", {}),
        # What comes again with another number, and what comes again with the same.
        ("Train Epoch: 1 [0/60]\nTrain Epoch: 1 [30/60]\n", {}),
        ("Train Epoch: 1 [0/60]\nTrain Epoch: 2 [0/60]\n", {"Epoch": 2.0}),
        ("lr: 0.1 tokens: 5\nlr: 0.05 tokens: 5\n", {"lr": 0.05}),
        # A metric counts the first time.
        ("final val_acc=0.91\n", {"val_acc": 0.91}),
        (
            "Test set: Average loss: 0.25, top1: 88, mIoU 3, eval_rouge1=0.5\n",
            {"loss": 0.25, "top1": 88.0, "eval_rouge1": 0.5},
        ),
        # torchrun, of two ranks that have failed.
        ("rank : 0 (local_rank: 0)\n exitcode : 1 (pid: 7)\n", {}),
        ("rank : 0 (local_rank: 0)\nrank : 1 (local_rank: 1)\n exitcode : 2 (pid: 8)\n", {}),
    ],
)
def test_a_name_is_a_metric_if_it_says_so_or_comes_again_with_another_number(
    output: str, metrics: dict[str, float]
) -> None:
    assert metrics_in(output) == metrics


@pytest.mark.parametrize("end", ["\r", "\n"])
def test_a_name_that_was_cut_off_is_none(end: str) -> None:
    """The end of a long output begins within a line; a progress bar's lines end with a carriage return."""
    bar = f"step 585, loss 0.932{end}step 586, loss 0.931{end}"
    whole = metrics_in(bar)
    assert whole == {"loss": 0.931}
    for cut in range(1, len(bar)):
        assert metrics_in(bar[cut:], is_cut=True).items() <= {"loss": 0.931}.items()
    assert metrics_in("oss: 0.5 ", is_cut=True) == {}


RUN = "https://wandb.ai/someone/project/runs/3vyg1x2a"
LINKS = {
    # wandb 0.31.0, sdk/wandb_run.py: `_header_run_info` and `_footer_sync_info`, as they are printed.
    f"wandb: \N{ROCKET} View run at {RUN}\n": RUN,
    f"wandb: \N{ROCKET} View run earnest-sunset-1 at: {RUN}\nwandb: \N{WHITE MEDIUM STAR} View project": RUN,
    f"wandb: \x1b[1;33m\N{ROCKET} View run \x1b[33ma b\x1b[0m at: \x1b[34m{RUN}\x1b[0m\n": RUN,
    # mlflow 3.18.0, tracking/_tracking_service/client.py: `_log_url`.
    "\N{RUNNER} View run bold-crab-3 at: http://127.0.0.1:5000/#/experiments/1/runs/0af3\n": (
        "http://127.0.0.1:5000/#/experiments/1/runs/0af3"
    ),
    "\N{TEST TUBE} View experiment at: http://127.0.0.1:5000/#/experiments/1\n": "",
    "wandb: View run at https://user:password@wandb.example/runs/1\n": "",
    "wandb: View run at https://wandb.ai/a/b/runs/c?apiKey=0123456789\n": "",
    "wandb: View run at javascript:alert(1)\n": "",
    'wandb: View run at https://a.example/"><script>\n': "",
    f"wandb: View run at https://a.example/{'x' * 600}\n": "",
    f"View run at {RUN}": "",  # It may go on.
}


@pytest.mark.parametrize("output", LINKS)
def test_the_link_of_a_run_is_what_the_libraries_print_and_nothing_that_holds_a_secret(output: str) -> None:
    assert link_in(output.encode()) == LINKS[output]


def test_a_link_is_short_and_of_the_web() -> None:
    assert is_link("https://a.example") and is_link("http://[::1]:5000/#/experiments/1/runs/2?name=x")
    for text in (
        "",
        "ftp://a.example",
        "//a.example",
        "https://",
        "https://a b",
        "https://a.example/?x=1&sig=2",
    ):
        assert not is_link(text)
