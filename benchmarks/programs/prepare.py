# SPDX-License-Identifier: Apache-2.0
"""Makes the data that a public program expects, out of random numbers, so that it runs without a network.

    python benchmarks/programs/prepare.py mnist data 20000

The files have the form of the real data set and nothing of its content.
"""

from __future__ import annotations

import argparse
import json
import pickle
import string
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

LETTERS = string.ascii_letters + string.digits + " .,;:!?'\n"


def mnist(folder: Path, count: int) -> None:
    """The raw files of MNIST: `count` images to train with, a tenth of it to test."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, images in (("train", count), ("t10k", max(count // 10, 1000))):
        label = rng.integers(0, 10, images, dtype=np.uint8)
        pixels = rng.integers(0, 64, (images, 28, 28), dtype=np.uint8)
        for digit in range(10):  # a bright row each, so that something can be learnt
            pixels[label == digit, 2 * digit + 4] += 160
        header = struct.pack(">IIII", 2051, images, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + pixels.tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, images) + label.tobytes())


def words(path: Path, count: int) -> None:
    """A text of `count` words, 25 a line, from a vocabulary of 2,000."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(len(path.name))
    number = np.minimum(rng.zipf(1.3, count), 2000)
    names = [f"w{n}" for n in number]
    path.write_text("\n".join(" ".join(names[i : i + 25]) for i in range(0, count, 25)) + "\n")


def characters(path: Path, count: int) -> None:
    """A text of `count` random characters; all that occur do so early."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    path.write_text(LETTERS + "".join(rng.choice(list(LETTERS), count)))


def names(path: Path, count: int) -> None:
    """`count` made-up names, one a line."""
    rng = np.random.default_rng(0)
    letters = list(string.ascii_lowercase)
    lengths = rng.integers(3, 11, count)
    path.write_text("\n".join("".join(rng.choice(letters, n)) for n in lengths) + "\n")


def character_tokens(folder: Path, count: int) -> None:
    """train.bin, val.bin and meta.pkl of a language model on characters, as 16 bit tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for part, size in (("train", count), ("val", max(count // 10, 10_000))):
        rng.integers(0, len(LETTERS), size, dtype=np.uint16).tofile(folder / f"{part}.bin")
    stoi = {letter: number for number, letter in enumerate(LETTERS)}
    meta = {"vocab_size": len(stoi), "stoi": stoi, "itos": {n: letter for letter, n in stoi.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def folder(path: Path, _: int) -> None:
    """An empty folder."""
    path.mkdir(parents=True, exist_ok=True)


def images(folder: Path, count: int) -> None:
    """An image folder with train/ and val/, ten classes, `count` JPEGs of 256 x 256 to train with."""
    _save(folder / "train", count, 10, 256)
    _save(folder / "val", max(count // 4, 10), 10, 256)


def flat_images(folder: Path, count: int) -> None:
    """train/ and test/ with JPEGs of 320 x 320 and no classes."""
    _save(folder / "train", count, 0, 320)
    _save(folder / "test", max(count // 4, 10), 0, 320)


def _save(folder: Path, count: int, classes: int, side: int) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        inside = folder / f"class{number % classes}" if classes else folder
        inside.mkdir(parents=True, exist_ok=True)
        small = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(small).resize((side, side)).save(inside / f"{number}.jpg")


def planetoid(folder: Path, count: int) -> None:
    """A citation graph in Planetoid's raw files under the name of Cora: `count` nodes, 7 classes."""
    import scipy.sparse as sparse

    raw = folder / "Cora" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    tested, trained, classes, features = 1000, 140, 7, 1433
    label = rng.integers(0, classes, count)
    label[:classes] = np.arange(classes)
    x = sparse.random(count, features, density=0.013, format="csr", dtype=np.float32, random_state=0)
    one_hot = np.eye(classes, dtype=np.int32)[label]
    known = count - tested
    graph = {node: rng.integers(0, count, 4).tolist() for node in range(count)}
    parts = {
        "x": x[:trained],
        "y": one_hot[:trained],
        "allx": x[:known],
        "ally": one_hot[:known],
        "tx": x[known:],
        "ty": one_hot[known:],
        "graph": graph,
    }
    for part, what in parts.items():
        (raw / f"ind.cora.{part}").write_bytes(pickle.dumps(what))
    order = rng.permutation(np.arange(known, count))
    (raw / "ind.cora.test.index").write_text("\n".join(map(str, order)) + "\n")


def llama(folder: Path, count: int) -> None:
    """A small Llama with random weights and a tokenizer for it, as from_pretrained() reads them, and under
    data/ `count` documents to fine-tune it with."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{n}": n + 2 for n in range(1, 2001)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    model = folder / "model"
    fast.save_pretrained(model)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=512,
        intermediate_size=1408,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
    )
    LlamaForCausalLM(config).save_pretrained(model)
    rng = np.random.default_rng(0)
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for part, size in (("train", count), ("test", max(count // 10, 8))):
        texts = (" ".join(f"w{n}" for n in rng.integers(1, 2001, 200)) for _ in range(size))
        lines = (json.dumps({"text": text, "instruction": text[:99], "output": text}) for text in texts)
        (folder / "data" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")


def stories(folder: Path, count: int) -> None:
    """A transformer of gpt-fast's configuration "stories`count`M" with random weights, and a SentencePiece
    tokenizer. Its model.py must be in the current folder."""
    import sentencepiece
    import torch

    sys.path.insert(0, ".")
    from model import Transformer  # type: ignore[import-not-found]

    here = folder / f"stories{count}M"
    here.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    torch.save({"model": Transformer.from_name(here.name).state_dict()}, here / "model.pth")
    text = here / "text.txt"
    characters(text, 20_000)
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(here / "tokenizer"), vocab_size=80, model_type="char", minloglevel=2
    )


KINDS: dict[str, Callable[[Path, int], None]] = {
    make.__name__: make
    for make in (
        mnist,
        words,
        characters,
        names,
        folder,
        character_tokens,
        images,
        flat_images,
        planetoid,
        llama,
        stories,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Make data in the form that a public program expects.")
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("path", type=Path)
    parser.add_argument("count", type=int)
    args = parser.parse_args()
    KINDS[args.kind](args.path, args.count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
