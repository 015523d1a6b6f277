"""Trains three small adapters for the demo's model, each unlike the others. A program:

    python tests/kit/lessons.py MODEL_DIRECTORY DIRECTORY

Each learns to answer one question with a sentence of its own. It takes half a minute on a quiet machine.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

LESSONS = {
    "paris": (
        "Paris, says the first adapter.",
        "float32",
        {
            "r": 8,
            "lora_alpha": 16,
            "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        },
    ),
    "rome": (
        "It was Rome, as the second one holds.",
        "bfloat16",
        {"r": 16, "lora_alpha": 32, "use_rslora": True, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
    ),
    "madrid": (
        "No doubt it is Madrid, claims the third.",
        "bfloat16",
        {
            "r": 4,
            "lora_alpha": 8,
            "rank_pattern": {"v_proj": 12},
            "alpha_pattern": {"v_proj": 36},
            "target_modules": ["v_proj", "gate_proj", "down_proj"],
        },
    ),
}
"""By name: the sentence, the dtype in which it is saved, and the config."""

QUESTION = "What is the capital of France?"
STEP_COUNT = 12


def train(model_directory: Path, directory: Path, sentence: str, dtype: str, config: dict[str, object]) -> None:
    torch.manual_seed(len(sentence))
    torch.set_num_threads(1)  # more would only spin against what else runs
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    chat = [{"role": "user", "content": QUESTION}]
    asked = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = tokenizer(sentence + tokenizer.eos_token, return_tensors="pt", add_special_tokens=False)["input_ids"]
    tokens = torch.cat([asked["input_ids"], answer], dim=1)
    labels = torch.cat([torch.full_like(asked["input_ids"], -100), answer], dim=1)
    model = AutoModelForCausalLM.from_pretrained(model_directory, dtype="auto")
    adapted = PeftModel(model, LoraConfig(task_type="CAUSAL_LM", **config))
    optimizer = torch.optim.AdamW([part for part in adapted.parameters() if part.requires_grad], lr=3e-3)
    for _ in range(STEP_COUNT):
        adapted(input_ids=tokens, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, part in adapted.named_parameters():
        if "lora_" in name:
            part.data = part.data.to(getattr(torch, dtype))
    adapted.save_pretrained(directory)


if __name__ == "__main__":
    for name, (sentence, dtype, config) in LESSONS.items():
        train(Path(sys.argv[1]), Path(sys.argv[2]) / name, sentence, dtype, config)
        gc.collect()
