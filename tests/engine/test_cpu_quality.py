"""The CPU's quality benchmark: what it computes, and a run in small."""

import json
import math
import os
import sys

import pytest
import torch
import torch.nn.functional as F

from benchmarks import cpu_quality
from benchmarks.cpu_answers import PROMPTS, parting, side_by_side, summed
from benchmarks.cpu_quality import FORMS, REFERENCE, Form, against, opened, predicted, prose, table
from engine.native.library import native_missing


def answer(ids, logprobs=(), text=""):
    return {"ids": list(ids), "logprobs": list(logprobs), "text": text}


def test_the_ratio_of_perplexities_has_the_error_of_its_mean_difference():
    exact = torch.tensor([1.0, 2.0, 3.0, 2.0], dtype=torch.float64)
    more = torch.tensor([0.01, 0.03, -0.01, 0.01], dtype=torch.float64)
    best = torch.tensor([5, 6, 7, 8])
    row = against(exact + more, torch.tensor([5, 6, 7, 0]), exact, best)
    assert row["perplexity"] == pytest.approx(math.exp(2.01), rel=1e-4)
    assert row["ratio"] == pytest.approx(math.exp(0.01), rel=1e-5)
    assert row["ratio_error"] == pytest.approx(math.exp(0.01) * more.std().item() / 2, rel=0.06)
    assert row["same_choice"] == 0.75
    assert not row["within_goal"], "e to the 0.01 is just above 1.01"
    assert against(exact + 0.009, best, exact, best)["within_goal"]
    assert not against(exact - 0.011, best, exact, best)["within_goal"]


def test_answers_part_at_the_first_token_that_differs():
    likely = [{1: -0.1}, {2: -0.2, 9: -0.5}, {3: -0.1}]
    exact = answer([1, 2, 3], likely)
    assert parting(exact, answer([1, 9, 3])) == {"equal": False, "same_tokens": 1, "lead_nats": 0.3}
    assert parting(exact, answer([1, 8])) == {"equal": False, "same_tokens": 1, "lead_nats": None}
    assert parting(exact, answer([1, 2])) == {"equal": False, "same_tokens": 2, "lead_nats": None}
    assert parting(exact, exact) == {"equal": True, "same_tokens": 3, "lead_nats": None}


def test_the_sum_says_how_many_are_equal_and_how_far_the_others_go():
    exact = answer([1, 2, 3], [{1: -0.1, 7: -0.2}, {2: -0.2, 9: -0.5}, {3: -0.1}])
    partings = [parting(exact, answer(ids)) for ids in ([1, 2, 3], [1, 9, 3], [7], [1, 2])]
    assert summed(partings) == {
        "answers": 4,
        "equal": 1,
        "same_tokens": [0, 1, 2],
        "median_lead_nats": 0.2,
        "most_lead_nats": 0.3,
    }
    assert summed(partings[:1])["median_lead_nats"] is None


def test_answers_of_all_forms_stand_beside_each_other():
    said = {"float32": [answer([1, 2], [{1: -0.1}, {2: -0.1}], "one")], "int4": [answer([1, 3], (), "two")]}
    (row,) = side_by_side(["Say it."], said, "float32")
    assert row["answers"]["float32"] == {"text": "one", "tokens": 2}
    assert row["answers"]["int4"] == {
        "text": "two",
        "tokens": 2,
        "equal": False,
        "same_tokens": 1,
        "lead_nats": None,
    }


def test_the_text_is_long_enough_and_has_no_broken_lines():
    paragraphs = prose().split("\n\n")
    assert sum(map(len, paragraphs)) > 4 * 4000, "4,000 tokens"
    assert not any("\n" in paragraph for paragraph in paragraphs)
    assert len(set(PROMPTS)) == 20


def test_losses_are_those_of_the_model_in_each_window(tiny_model_dir):
    """Against transformers' own forward pass over each window alone."""
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    with opened(REFERENCE, str(tiny_model_dir)) as engine:
        ids = torch.randint(3, engine.runner.vocab_size, (60,), generator=torch.Generator().manual_seed(0))
        losses, best = predicted(engine, ids, 25)
    expected, likeliest = [], []
    with torch.inference_mode():
        for begin, end in ((0, 25), (25, 50), (50, 59)):
            logits = reference(ids[None, begin:end]).logits[0]
            expected.append(F.cross_entropy(logits, ids[begin + 1 : end + 1], reduction="none"))
            likeliest.append(logits.argmax(dim=-1))
    assert torch.allclose(losses.float(), torch.cat(expected), atol=1e-4)
    assert torch.equal(best, torch.cat(likeliest))


def test_a_form_without_the_c_decoder_leaves_the_switch_as_it_was(tiny_model_dir, monkeypatch):
    monkeypatch.delenv("TUI_INFER_NATIVE", raising=False)
    before = native_missing()
    with opened(Form("torch", native=False), str(tiny_model_dir)):
        assert native_missing() == "TUI_INFER_NATIVE switches it off"
    assert "TUI_INFER_NATIVE" not in os.environ
    assert native_missing() == before


def test_the_command_writes_a_row_a_form_with_where_it_comes_from(
    tiny_model_dir, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "cpu-quality.json"
    arguments = ["--model", str(tiny_model_dir), "--tokens", "40", "--window", "20", "--new", "3"]
    monkeypatch.setattr(sys, "argv", ["cpu_quality", *arguments, "--json", str(path)])
    monkeypatch.setattr(cpu_quality, "PROMPTS", PROMPTS[:2])
    cpu_quality.main()
    value = json.loads(path.read_text())
    left_out = {row["form"] for row in value["skipped"]}
    assert [row["form"] for row in value["rows"]] == [
        form.name for form in FORMS if form.name not in left_out
    ]
    assert value["rows"][0]["ratio"] == 1
    assert value["rows"][0]["greedy"]["equal"] == 2
    assert [answer["prompt"] for answer in value["answers"]] == list(PROMPTS[:2])
    assert {"command", "machine", "versions", "date"} <= value["header"].keys()
    assert table(value["rows"]) in capsys.readouterr().out
