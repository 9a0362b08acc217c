"""Train chapter 11's model on dates and print what it can do: `make bench`."""

import argparse
import time

import torch

from transformer_tutorial import Transformer, TransformerConfig
from transformer_tutorial.training import (
    DATE_MODEL,
    DATE_TRAINING,
    Vocabulary,
    alignment_share,
    date_pairs,
    train,
    translate,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the model's first weights")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    drawn = date_pairs(20_500, seed=0)
    pairs, unseen = drawn[:20_000], drawn[20_000:]
    src_vocab = Vocabulary.from_texts(source for source, _ in pairs)
    tgt_vocab = Vocabulary.from_texts(target for _, target in pairs)
    torch.manual_seed(options.seed)
    model = Transformer(TransformerConfig(len(src_vocab), len(tgt_vocab), **DATE_MODEL))

    start = time.perf_counter()
    train(model, pairs, src_vocab, tgt_vocab, **DATE_TRAINING)
    seconds = time.perf_counter() - start
    written = translate(model, [source for source, _ in unseen], src_vocab, tgt_vocab)
    right = sum(one == two for one, (_, two) in zip(written, unseen, strict=True))
    aligned = alignment_share(model, unseen, src_vocab, tgt_vocab)

    print(f"training            {seconds:.1f} s on {options.threads} threads")
    print(f"exactly right       {right} of {len(unseen)} unseen dates")
    print(f"attention aligned   {aligned:.1%} of their target tokens")


if __name__ == "__main__":
    main()
