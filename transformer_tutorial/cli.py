"""The command line: `transformer-tutorial train | evaluate | translate | inspect | attention`."""

import ctypes
import inspect
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass, make_dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_type_hints

import torch
from torch import Tensor, nn

from transformer_tutorial.data import (
    CORPORA,
    OnError,
    ParallelText,
    SubwordTokenizer,
    TokenBatches,
    exclude,
    load_corpus,
    read_lines,
    split_pairs,
)
from transformer_tutorial.decoding import DecodingConfig, evaluating
from transformer_tutorial.model import Transformer, TransformerConfig
from transformer_tutorial.output import log_softmax
from transformer_tutorial.trainer import Trainer, TrainingConfig, checkpoints
from transformer_tutorial.translator import Translator, corpus_scores, token_nll

try:
    import tyro
    import yaml
    from rich.console import Console
    from rich.table import Table
except ImportError as missing:
    raise SystemExit(
        f'{missing}; the command line needs: pip install "transformer-tutorial[train]"'
    ) from missing

RECIPES = Path(__file__).parent / "recipes"
PICTURES = (".png", ".svg", ".pdf")
NOT_IN_FILES = ("output", "config", "debug")
HELD_OUT = 1000  # pairs for validation, where no file of them is given
LEARNED = 1_000_000  # sentences of a stream that its vocabulary is learned from
Pairs: TypeAlias = Iterable[tuple[str, str]]


class UsageError(Exception):
    """Options that do not go together or are not allowed."""


def say(text: object) -> None:
    print(text, file=sys.stderr, flush=True)


# What the documentation of `DecodingConfig` leaves to that of the functions.
HELP = {
    "temperature": "Sampling: less than 1 favours the likely words, more than 1 the others.",
    "top_k": "Sampling: draw from the k likeliest words only.",
    "top_p": "Sampling: draw from the fewest likeliest words whose probabilities reach p only.",
}


def maybe(metavar: str, **more: Any) -> Any:
    """How tyro shows an option that need not be given and has no default to speak of."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint="", **more)


def options_of(kind: type, *omitted: str, unset: bool = False) -> type:
    """The fields of `kind` but those in `omitted`, as options of their own, without its checks.

    With `unset` each is `None` until it is given, and what was saved holds.
    """
    hints, made = get_type_hints(kind), []
    for item in fields(kind):
        hint: Any = hints[item.name]
        if item.name not in omitted:
            if unset:
                shown = maybe((*get_args(hint), hint)[0].__name__.upper(), help=HELP.get(item.name))
                hint = Annotated[hint | None, shown]
            made.append((item.name, hint, field(default=None if unset else item.default)))
    new = make_dataclass(kind.__name__, made)
    new.__doc__ = kind.__doc__
    if unset:
        arguments = inspect.cleandoc(kind.__doc__ or "").partition("Args:")[2]
        new.__doc__ = f"Options given here win over the saved ones.\n\nArgs:{arguments}"
    return new


if TYPE_CHECKING:
    ModelOptions: TypeAlias = Any
    TrainingOptions: TypeAlias = Any
    DecodingOptions: TypeAlias = Any
else:
    ModelOptions = options_of(TransformerConfig, "src_vocab_size", "tgt_vocab_size", "pad_id")
    TrainingOptions = options_of(TrainingConfig)
    DecodingOptions = options_of(DecodingConfig, "n_best", unset=True)


def checked(prefix: str, kind: Any, values: Mapping[str, Any]) -> Any:
    """A configuration made from options; what it does not allow is wrong usage."""
    try:
        return kind(**values)
    except ValueError as error:
        raise UsageError(f"{prefix}{error}") from error


def parallel_text(option: str, files: Sequence[Path], on_error: OnError) -> ParallelText:
    """The text that an option names by a TSV file or by two files."""
    if len(files) > 2:
        raise UsageError(f"--{option} takes a TSV file or two files, got {len(files)}")
    if len(files) == 2:
        return ParallelText.from_files(files[0], files[1], on_error=on_error)
    return ParallelText.from_tsv(files[0], on_error=on_error)


def lowered(pairs: Pairs) -> Iterator[tuple[str, str]]:
    return ((source.lower(), target.lower()) for source, target in pairs)


@dataclass
class Without:
    """The pairs of which neither side is held out, read anew each time."""

    pairs: Pairs
    held_out: Sequence[tuple[str, str]]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(exclude(self.pairs, self.held_out))


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that is written whole or not at all."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
    elif path.exists() and not path.is_file():  # such as /dev/null
        with path.open("wb") as file:
            yield file
    else:
        new = path.resolve().with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with new.open("wb") as file:
                yield file
            new.replace(path.resolve())
        finally:
            new.unlink(missing_ok=True)


def show(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the last row is set apart."""
    table = Table()
    for name in columns:
        right = name in ("value", "parameters")
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    *rows, last = rows
    for row in rows:
        table.add_row(*row)
    table.add_section()
    table.add_row(*last)
    width = None if sys.stdout.isatty() else 120
    Console(file=sys.stdout, highlight=False, markup=False, width=width).print(table)


Files = Annotated[tuple[Path, ...], maybe("FILE [FILE]")]
MaybePath = Annotated[Path | None, maybe("PATH")]
MaybeText = Annotated[str | None, maybe("TEXT")]
MaybeName = Annotated[str | None, maybe("NAME")]
MaybeCount = Annotated[int | None, maybe("N")]
Directory = Annotated[str, tyro.conf.arg(metavar="DIR")]


@dataclass(kw_only=True)
class Common:
    debug: bool = False
    """After an error, show where in the program it happened."""

    def run(self) -> int:
        raise NotImplementedError


@dataclass(kw_only=True)
class OfText(Common):
    """A command that reads parallel text."""

    corpus: MaybeName = None
    """A public corpus, tatoeba-zh-en or multi30k-de-en, which is downloaded."""
    folder: MaybePath = None
    """Read the corpus from this folder instead of the network."""
    cache: MaybePath = None
    """Where downloads are kept, if not in the system's usual place."""
    on_error: OnError = "raise"
    """Whether a line of yours that cannot be used is an error, or is skipped and counted."""

    def check(self, option: str, files: Sequence[Path]) -> None:
        if bool(self.corpus) == bool(files):
            raise UsageError(f"give either --corpus NAME or --{option} FILE [FILE]")
        if self.corpus is not None and self.corpus not in CORPORA:
            raise UsageError(f"--corpus must be one of {', '.join(CORPORA)}; got {self.corpus}")


@dataclass(kw_only=True)
class OfTranslator(Common):
    """A command that uses a saved translator."""

    model: Directory
    """The translator's directory, or its OWNER/NAME on huggingface.co."""
    device: MaybeName = None
    """Where to compute, such as cpu or cuda:0; the GPU if there is one."""
    decoding: Annotated[DecodingOptions, tyro.conf.OmitArgPrefixes] = field(
        default_factory=DecodingOptions
    )

    def load(self) -> Translator:
        """The translator, decoding in its own way but for the options that are given."""
        translator = Translator.from_pretrained(self.model, device=self.device)
        given = {name: value for name, value in vars(self.decoding).items() if value is not None}
        own = asdict(translator.decoding) | {"n_best": 1}
        translator.decoding = checked("", DecodingConfig, own | given)
        return translator


@dataclass(kw_only=True)
class VocabularyOptions:
    """Subwords, learned from the training text."""

    size: int = 8000
    """Pieces in a vocabulary."""
    joint: bool = True
    """One vocabulary for both languages."""
    model_type: Literal["unigram", "bpe"] = "unigram"
    """How sentencepiece chooses the pieces."""
    lowercase: bool = False
    """Learn from lower-cased text, and lower-case what is to be translated."""


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees, since the next step asks for the same again.

    On Linux with glibc this saves a third of a step's time on a CPU; elsewhere it does nothing.
    """
    m_trim_threshold, m_mmap_max = -1, -4  # from glibc's malloc.h
    with suppress(AttributeError, OSError, TypeError):
        glibc = ctypes.CDLL(None)
        glibc.mallopt(m_trim_threshold, 2**31 - 1)
        glibc.mallopt(m_mmap_max, 0)


@dataclass(kw_only=True)
class Train(OfText):
    """Train a translator on parallel text, or go on training.

    Example: transformer-tutorial train --config tatoeba-zh-en --output runs/zh-en
    """

    output: Path
    """Directory of the run. If it holds checkpoints, training goes on from the newest one."""
    config: MaybeName = None
    """A recipe, tatoeba-zh-en or multi30k-de-en, or a YAML file; options given here win over it."""
    train: Files = ()
    """Your own text to train on: a TSV file, or a source and a target file aligned by line."""
    validation: Files = ()
    """Text to validate on, in the same forms; 1,000 pairs or a tenth are split off if not given."""
    stream: bool = False
    """Read the training files anew in each epoch instead of holding them in memory."""
    from_: Annotated[str | None, maybe("DIR", name="from")] = None
    """Tune this translator further; its vocabulary and model.* options come with it."""
    tensorboard: bool = False
    """Also write TensorBoard files into the run's directory."""
    vocabulary: VocabularyOptions = field(default_factory=VocabularyOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def run(self) -> int:
        self.check("train", self.train)
        if self.stream and not (self.train and self.validation):
            raise UsageError("--stream goes with --train and --validation")
        if self.model.share_embeddings and not self.vocabulary.joint:
            raise UsageError("--model.share-embeddings needs --vocabulary.joint")
        training = checked("training.", TrainingConfig, vars(self.training))
        size = self.vocabulary.size
        checked("model.", TransformerConfig, self.model_fields(size, size, 0))

        translator = self.old_translator()
        train, validation = self.pairs()
        torch.manual_seed(training.seed)
        translator = translator or self.new_translator(train)
        count = sum(weight.numel() for weight in translator.model.parameters())
        sizes = [len(translator.src_tokenizer), len(translator.tgt_tokenizer)]
        say(f"vocabularies of {sizes[0]:,} and {sizes[1]:,} pieces, {count:,} parameters")
        self.output.mkdir(parents=True, exist_ok=True)
        with output_file(self.output / "config.yaml") as file:
            file.write(self.decided().encode())

        keep_freed_memory()
        outcome = Trainer(
            translator, train, validation, training, self.output, tensorboard=self.tensorboard
        ).fit()
        best = self.output / "best"
        if best.is_dir():
            say(f"best: {best}, of step {outcome.best_step}, BLEU {outcome.best_bleu:.2f}")
            say(f"use it: transformer-tutorial translate --model {best}")
        return 0 if outcome.signal is None else 128 + outcome.signal

    def old_translator(self) -> Translator | None:
        """What training goes on from: the newest checkpoint that can be read, else --from."""
        translator = None
        for checkpoint in checkpoints(self.output):
            with suppress(OSError, ValueError):  # the trainer says what is wrong with it
                translator = Translator.from_pretrained(checkpoint, device="cpu")
                break
        if translator is None and self.from_ is not None:
            translator = Translator.from_pretrained(self.from_, device="cpu")
            if Path(self.from_).is_dir():
                self.from_ = str(Path(self.from_).resolve())
        if translator is not None:
            config = asdict(translator.model.config)
            for name, value in vars(self.model).items():
                if self.from_ is None and value != config[name]:
                    raise UsageError(
                        f"the checkpoints in {self.output} have model.{name} {config[name]}, not "
                        f"{value}; give that, or another --output"
                    )
                setattr(self.model, name, config[name])
            self.vocabulary.lowercase = translator.lowercase
        return translator

    def new_translator(self, train: Pairs) -> Translator:
        """Learn the vocabularies and draw the first weights."""

        def learn(sides: Sequence[int]) -> SubwordTokenizer:
            pairs = lowered(train) if self.vocabulary.lowercase else train
            texts = (pair[side] for pair in pairs for side in sides)
            some = islice(texts, LEARNED if self.stream else None)
            return SubwordTokenizer.train(some, self.vocabulary.size, self.vocabulary.model_type)

        src = learn([0, 1] if self.vocabulary.joint else [0])
        tgt = src if self.vocabulary.joint else learn([1])
        config = TransformerConfig(**self.model_fields(len(src), len(tgt), src.pad_id))
        return Translator(Transformer(config), src, tgt, lowercase=self.vocabulary.lowercase)

    def model_fields(self, src: int, tgt: int, pad_id: int) -> dict[str, Any]:
        learned = {"src_vocab_size": src, "tgt_vocab_size": tgt, "pad_id": pad_id}
        return vars(self.model) | learned

    def pairs(self) -> tuple[Pairs, Sequence[tuple[str, str]]]:
        """Training and validation pairs; no sentence of the second stands in the first."""
        train: Pairs
        validation: Sequence[tuple[str, str]] = []
        if self.corpus is not None:
            say(CORPORA[self.corpus].terms)
            splits = load_corpus(self.corpus, self.folder, self.cache)
            train, validation = splits.train, splits.validation
        else:
            train = text = parallel_text("train", self.train, self.on_error)
            if not self.stream:
                train = list(text)
                say(text.report)
                if not train:
                    raise ValueError(f"{self.train[0]} has no pairs to train on")
                if not self.validation:
                    amount = max(1, min(HELD_OUT, len(train) // 10))
                    splits = split_pairs(train, amount, 0, seed=0)
                    train, validation = splits.train, splits.validation
        if self.validation:
            text = parallel_text("validation", self.validation, self.on_error)
            validation = list(text)
            say(text.report)
            train = Without(train, validation)
            train = train if self.stream else list(train)
        many = f"{len(train):,}" if isinstance(train, list) else "a stream of"
        say(f"{many} training pairs, {len(validation):,} validation pairs")
        return train, validation

    def decided(self) -> str:
        """All that was decided, as a file that --config reads."""

        def plain(value: Any) -> Any:
            if isinstance(value, tuple):
                return [plain(item) for item in value]
            return str(value.resolve()) if isinstance(value, Path) else value

        values = {
            name.rstrip("_"): plain(value)
            for name, value in asdict(self).items()
            if name not in NOT_IN_FILES and value != ()
        }
        text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        return text


@dataclass(kw_only=True)
class Evaluate(OfText, OfTranslator):
    """Translate a text whose translation is known, and score it.

    Example: transformer-tutorial evaluate --model runs/zh-en/best --corpus tatoeba-zh-en
    """

    split: Literal["validation", "test"] = "test"
    """Which part of the corpus."""
    data: Files = ()
    """Your own text: a TSV file, or a source and a target file aligned by line."""
    output: MaybePath = None
    """Write source, reference and translation of each pair into this TSV file."""
    json: bool = False
    """Print the scores as JSON."""
    tokenize: MaybeName = None
    """How sacreBLEU cuts words: 13a if not given; zh for Chinese translations."""

    def run(self) -> int:
        self.check("data", self.data)
        if self.corpus is not None:
            splits = load_corpus(self.corpus, self.folder, self.cache)
            pairs = splits.test if self.split == "test" else splits.validation
        else:
            text = parallel_text("data", self.data, self.on_error)
            pairs = list(text)
            say(text.report)
        if not pairs:
            where = f"the {self.split} part of {self.corpus}" if self.corpus else self.data[0]
            raise ValueError(f"{where} has no pairs to evaluate on")
        translator = self.load()
        sources, references = zip(*pairs, strict=True)
        translations = translator.translate(sources)
        if self.output is not None:
            with output_file(self.output) as file:
                for row in zip(sources, references, translations, strict=True):
                    file.write("\t".join(cell.replace("\t", " ") for cell in row).encode() + b"\n")
        scores = corpus_scores(translations, references, translator.lowercase, self.tokenize)
        batches = TokenBatches(
            list(lowered(pairs)) if translator.lowercase else pairs,
            translator.src_tokenizer,
            translator.tgt_tokenizer,
            max_tokens=max(4096, translator.model.config.max_length + 1),
            max_length=translator.model.config.max_length,
            shuffle=False,
            too_long="skip",
        )
        if batches.report.skipped:
            say(f"nll without the pairs that the model cannot read: {batches.report}")
        nll = token_nll(translator.model, batches)
        if self.json:
            found = {"pairs": len(pairs), **asdict(scores), "nll": nll, "perplexity": math.exp(nll)}
            print(json.dumps(found | {"decoding": asdict(translator.decoding)}))
            return 0
        rows = [
            ("BLEU", f"{scores.bleu:.2f}", scores.bleu_signature),
            ("chrF", f"{scores.chrf:.2f}", scores.chrf_signature),
            ("nll", f"{nll:.4f}", "nats per token of the reference"),
            ("perplexity", f"{math.exp(nll):.3f}", "e to the power of nll"),
            ("pairs", f"{len(pairs):,}", ""),
        ]
        show(("score", "value", "how"), rows)
        return 0


@dataclass(kw_only=True)
class Translate(OfTranslator):
    """Translate text line by line: one line out for each line in.

    Example: transformer-tutorial translate --model runs/zh-en/best < chinese.txt > english.txt
    """

    input: MaybePath = None
    """File to read, plain or gzip, instead of standard input; UTF-8, one sentence a line."""
    output: MaybePath = None
    """File to write, whole or not at all, instead of standard output."""
    n_best: MaybeCount = None
    """Write the N best translations of each line, as rows of line number, score, translation."""
    long: Literal["split", "refuse"] = "split"
    """Whether a line too long for the model is translated in pieces or is an error."""

    def run(self) -> int:
        if self.n_best is not None and self.n_best < 1:
            raise UsageError(f"--n-best must be at least 1, got {self.n_best}")
        translator = self.load()
        typed = self.input is None and sys.stdin.isatty()
        lines = read_lines(sys.stdin.buffer if self.input is None else self.input)
        rows = (
            translator.translate_stream(
                (text for _, text in lines), 1 if typed else 1024, long=self.long
            )
            if self.n_best is None
            else n_best_rows(translator, lines, self.n_best)
        )
        with output_file(self.output) as file:
            for row in rows:
                file.write(row.encode() + b"\n")
                if typed:
                    file.flush()
        return 0


def n_best_rows(
    translator: Translator, lines: Iterable[tuple[int, str]], count: int
) -> Iterator[str]:
    for number, text in lines:
        try:
            found = translator.n_best(text, count) if text.strip() else [("", 0.0)]
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from error
        for translation, score in found:
            yield f"{number}\t{score:.4f}\t" + translation.replace("\t", " ")


@dataclass(kw_only=True)
class Inspect(Common):
    """Show the shape of what each stage of a model gives, and its parameters.

    Example: transformer-tutorial inspect --model.d-model 256 --model.num-heads 4
    """

    directory: Annotated[str | None, maybe("DIR", name="model")] = None
    """A saved translator to look into, instead of a new model made from the options below."""
    sentence: MaybeText = None
    """What the saved translator shall translate."""
    vocabulary_size: int = 1000
    """Words of each of a new model's vocabularies."""
    model: ModelOptions = field(default_factory=lambda: ModelOptions(d_ff=64, dropout=0.2))

    def run(self) -> int:
        if (self.directory is None) != (self.sentence is None):
            raise UsageError("--model DIR and --sentence TEXT go together")
        if self.directory is None or self.sentence is None:
            size = self.vocabulary_size
            vocabularies = {"src_vocab_size": size, "tgt_vocab_size": size}
            values = vars(self.model) | vocabularies
            model = Transformer(checked("model.", TransformerConfig, values))
            src = tgt = torch.tensor([[100, 2, 421, 4], [225, 4, 85, 6]])
        else:
            translator = Translator.from_pretrained(self.directory, device="cpu")
            model = translator.model
            translation = translator.translate([self.sentence])[0]
            say(f"{self.sentence} → {translation}")
            texts = [self.sentence, translation]
            if translator.lowercase:
                texts = [text.lower() for text in texts]
            src = torch.tensor([translator.src_tokenizer.encode(texts[0])])
            tgt = torch.tensor([translator.tgt_tokenizer.encode(texts[1])[:-1]])
        show(("stage", "module", "shape", "parameters"), stages(model, src, tgt))
        return 0


def stages(model: Transformer, src: Tensor, tgt: Tensor) -> list[tuple[str, str, str, str]]:
    """Name, module, shape of the output, and new parameters of each stage, in order; then the sum.

    The shapes are those that hooks see while the model reads `src` and `tgt`. A parameter counts
    where it is first used.
    """

    def stack(side: str, layers: Any, norm: nn.Module) -> list[tuple[str, nn.Module]]:
        named = [(f"{side} layer {number}", layer) for number, layer in enumerate(layers, 1)]
        return [*named, (f"{side} norm", norm)] if model.config.norm_first else named

    watched: list[tuple[str, nn.Module]] = [
        ("source embedding", model.src_embedding),
        ("+ positions", model.src_positions),
        *stack("encoder", model.encoder.layers, model.encoder.norm),
        ("memory", model.encoder),
        ("target embedding", model.tgt_embedding),
        ("+ positions", model.tgt_positions),
        *stack("decoder", model.decoder.layers, model.decoder.norm),
        ("logits", model.output),
    ]
    seen: list[Tensor] = []
    for module in {id(module): module for _, module in watched}.values():
        module.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with evaluating(model):
        model(src, tgt)
    counted: set[int] = set()
    rows = [("source ids", "", str(tuple(src.shape)), "")]
    for (stage, module), output in zip(watched, seen, strict=True):
        if stage == "target embedding":
            rows.append(("target ids", "", str(tuple(tgt.shape)), ""))
        new = {id(weight): weight.numel() for weight in module.parameters()}
        count = sum(size for key, size in new.items() if key not in counted)
        counted |= new.keys()
        name = type(module).__name__
        rows.append((stage, name, str(tuple(output.shape)), f"{count:,}" if count else ""))
    shape = tuple(log_softmax(seen[-1]).shape)
    rows.append(("log-probabilities", "log_softmax", str(shape), ""))
    total = sum(weight.numel() for weight in model.parameters())
    return [*rows, ("total", type(model).__name__, "", f"{total:,}")]


@dataclass(kw_only=True)
class Attention(OfTranslator):
    """Draw what a translator looks at in the source while it writes each piece.

    Example: transformer-tutorial attention --model runs/zh-en/best --source 我爱你 --output a.png
    """

    source: str
    """The sentence to translate."""
    output: Path
    """The picture to write: .png, .svg or .pdf."""
    target: MaybeText = None
    """A translation to read; the translator's own if not given."""
    layer: MaybeCount = None
    """Decoder layer, from 1; the last if not given."""
    head: MaybeCount = None
    """Attention head, from 1; the mean of all if not given."""

    def run(self) -> int:
        if self.output.suffix.lower() not in PICTURES:
            raise UsageError(f"--output must end in {', '.join(PICTURES)}; got {self.output}")
        try:
            from transformer_tutorial.plotting import figure, heatmap
        except ImportError as error:
            raise ImportError(
                f'{error}; pictures need: pip install "transformer-tutorial[notebooks]"'
            ) from error
        translator = self.load()
        config = translator.model.config
        layer = config.num_decoder_layers if self.layer is None else self.layer
        sizes = (("layer", layer, config.num_decoder_layers), ("head", self.head, config.num_heads))
        for name, number, most in sizes:
            if number is not None and not 1 <= number <= most:
                raise UsageError(f"--{name} must be 1 to {most}, got {number}")
        found = translator.attention(self.source, self.target)
        weights = found.weights[layer - 1]
        matrix = weights.mean(0) if self.head is None else weights[self.head - 1]
        which = f"mean of {config.num_heads} heads" if self.head is None else f"head {self.head}"

        def labels(pieces: Sequence[str]) -> list[str]:  # "$" begins a formula
            return [piece.replace("$", r"\$") if piece.strip() else "␣" for piece in pieces]

        rows, columns = labels(found.target_pieces), labels(found.source_pieces)
        picture, axes = figure(min(2 + 0.5 * len(columns), 60), min(1.6 + 0.3 * len(rows), 60))
        heatmap(axes, matrix, rows, columns, high=None)
        axes.set(xlabel="source", ylabel="target", title=f"cross-attention, layer {layer}, {which}")
        if max(map(len, columns)) > 6:
            axes.tick_params("x", rotation=90)
        with warnings.catch_warnings(), output_file(self.output) as file:
            warnings.filterwarnings("ignore", "Glyph .* missing")
            picture.savefig(file, format=self.output.suffix[1:].lower(), dpi=192)
        say(f"{self.output}: {' '.join(columns)} → {' '.join(rows)}")
        return 0


def options_in_file(name: str) -> dict[str, list[str]]:
    """What a recipe or a YAML file says: for each field the options that say it as well."""
    recipe = RECIPES / name / "config.yaml"
    path = recipe if recipe.is_file() else Path(name)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        recipes = ", ".join(sorted(item.parent.name for item in RECIPES.glob("*/config.yaml")))
        raise UsageError(
            f"--config {name}: no such recipe ({recipes}), and no such file: {error.strerror}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    return options_in_table(Train, values, str(path), "", NOT_IN_FILES)


def options_in_table(
    kind: Any, values: Any, where: str, prefix: str, omitted: Sequence[str] = ()
) -> dict[str, list[str]]:
    hints = get_type_hints(kind)
    known = {name.rstrip("_"): hint for name, hint in hints.items() if name not in omitted}
    if not isinstance(values, dict):
        raise UsageError(f"{where}: {prefix or 'it'} must be a table of fields, got {values!r}")
    if unknown := [f"{prefix}{name}" for name in values if name not in known]:
        allowed = ", ".join(f"{prefix}{name}" for name in known)
        raise UsageError(f"{where} has unknown fields: {', '.join(unknown)}; allowed: {allowed}")
    options: dict[str, list[str]] = {}
    for name, value in values.items():
        dashed = name.replace("_", "-")
        if is_dataclass(known[name]):
            inner = options_in_table(known[name], value, where, f"{prefix}{name}.")
            options[name] = [word for words in inner.values() for word in words]
        elif known[name] is bool:
            if not isinstance(value, bool):
                raise UsageError(f"{where}: {prefix}{name} must be true or false, got {value!r}")
            options[name] = [f"--{prefix}{dashed}" if value else f"--{prefix}no-{dashed}"]
        else:
            words = value if isinstance(value, list) else [value]
            options[name] = [f"--{prefix}{dashed}", *map(str, words)]
    return options


def parse(words: Sequence[str]) -> Common:
    parsed: Common = tyro.cli(
        Annotated[Train, tyro.conf.subcommand("train")]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Translate, tyro.conf.subcommand("translate")]
        | Annotated[Inspect, tyro.conf.subcommand("inspect")]
        | Annotated[Attention, tyro.conf.subcommand("attention")],
        args=list(words),
        prog="transformer-tutorial",
        description="Train a Transformer that translates, measure it, use it, look into it. "
        "Each command tells its options with --help.",
    )
    return parsed


def read_options(words: Sequence[str]) -> Common:
    """The options of a command, those in its configuration file included."""
    given = parse(words)
    if not isinstance(given, Train):
        return given
    name, own = given.config, given.output / "config.yaml"
    if name is None and own.is_file() and checkpoints(given.output):
        name = str(own)
    if name is None:
        return given
    options = options_in_file(name)
    if given.corpus or given.train:
        for replaced in ("corpus", "train", "validation", "folder"):
            options.pop(replaced, None)
    in_file = [word for words in options.values() for word in words]
    try:
        parse(["train", "--output", ".", *in_file])
    except SystemExit:
        say(f"What is wrong stands in {name}.")
        raise
    return parse([words[0], *in_file, *words[1:]])


def main(words: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or 1 after an error, 2 after wrong usage, 128 + n after signal n.

    Args:
        words: The command line without the program's name; that of the process when `None`.

    Raises:
        SystemExit: After --help, and where the command line cannot be read.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")
    options = None
    try:
        options = read_options(sys.argv[1:] if words is None else words)
        code = options.run()
        sys.stdout.flush()
        return code
    except UsageError as error:
        say(f"transformer-tutorial: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever reads has read enough. Nothing more can be written, not even at the very end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if options is not None and options.debug:
            raise
        foreseen = isinstance(error, OSError | ValueError | ImportError | FloatingPointError)
        say(f"transformer-tutorial: {error if foreseen else repr(error)}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
