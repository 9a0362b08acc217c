"""Parallel text: reading, splits, subwords, batches, downloads. BR numbers are the collected faults'."""

import builtins
import copy
import gzip
import hashlib
import io
import pickle
import random
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import pooch
import pytest
import sentencepiece
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from transformer_tutorial.data import (
    CORPORA,
    Batch,
    Corpus,
    DataError,
    DownloadError,
    ParallelText,
    ReadReport,
    Splits,
    SubwordTokenizer,
    TokenBatches,
    Tokenizer,
    exclude,
    fetch,
    load_corpus,
    read_lines,
    split_pairs,
)
from transformer_tutorial.training import Vocabulary, date_pairs, shift_targets

Pair = tuple[str, str]
DATES = date_pairs(300, seed=0)
CHINESE = ["我爱你。", "你好，世界！", "今天天气很好，我们去公园吧。", "他说：“不！”"]
ENGLISH = ["I love you.", "Hello, world!", "The weather is fine today, let's go to the park."]
TEXTS = CHINESE + ENGLISH + [side for pair in DATES[:60] for side in pair]


def written(path: Path, text: str | bytes, packed: bool = False) -> Path:
    raw = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(raw) if packed else raw)
    return path


# Lines


def lines_of(path: Path, text: str | bytes, packed: bool = False) -> list[str]:
    numbered = list(read_lines(written(path, text, packed)))
    assert [number for number, _ in numbered] == list(range(1, len(numbered) + 1))
    return [line for _, line in numbered]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_end_at_newlines_and_nowhere_else(tmp_path: Path, packed: bool) -> None:
    odd = ["a\u2028b", "c\u0085d", "e\x0cf", "g\x0bh\x1ci", "j\rk", "\u2029", "ß 你好", " x\t"]
    assert len("\n".join(odd).splitlines()) > len(odd)
    assert lines_of(tmp_path / "x", "\n".join(odd) + "\n", packed) == odd
    assert lines_of(tmp_path / "x", "\n".join(odd), packed) == odd
    assert lines_of(tmp_path / "x", "\r\n".join(odd) + "\r\n", packed) == odd


def test_lines_of_small_files(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "x", "") == []
    assert lines_of(tmp_path / "x", "\n") == [""]
    assert lines_of(tmp_path / "x", "\n\na") == ["", "", "a"]
    assert lines_of(tmp_path / "x", "", packed=True) == []


def test_a_byte_order_mark_goes_only_at_the_start(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "x", "\ufeffa\n\ufeffb\nc\ufeff\n") == ["a", "\ufeffb", "c\ufeff"]


def test_gzip_is_known_by_its_bytes_not_by_the_name(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "x.txt", "a\nb\n", packed=True) == ["a", "b"]
    assert lines_of(tmp_path / "x.gz", "a\nb\n", packed=False) == ["a", "b"]


@pytest.mark.parametrize("packed", [False, True])
def test_lines_of_an_open_file(tmp_path: Path, packed: bool) -> None:
    path = written(tmp_path / "x", "ä\nb\n", packed)
    with path.open("rb") as buffered, path.open("rb", buffering=0) as raw:
        for file in (io.BytesIO(path.read_bytes()), buffered, raw):
            assert [line for _, line in read_lines(file)] == ["ä", "b"]
            assert not file.closed


def test_broken_utf8_is_named_by_file_and_line(tmp_path: Path) -> None:
    path = written(tmp_path / "x.de", "straße\n".encode() + "straße\n".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8: byte 0xDF after 4 good ones") as caught:
        list(read_lines(path))
    assert str(caught.value).startswith(f"{path}:2: ")
    with pytest.raises(DataError, match="<stream>:1: not UTF-8: byte 0xFF"):
        list(read_lines(io.BytesIO("a".encode("utf-16"))))


@pytest.mark.parametrize(
    "damage", [lambda raw: raw[:-9], lambda raw: raw[:60] + b"\0\0\0" + raw[63:]]
)
def test_a_damaged_gzip_file_is_an_error(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    text = "\n".join(str(random.Random(0).random()) for _ in range(2000))
    path = written(tmp_path / "x.gz", damage(gzip.compress(text.encode())))
    with pytest.raises(DataError, match=r"x\.gz:\d+: the gzip file is damaged"):
        list(read_lines(path))
    with pytest.raises(DataError, match="damaged"):
        list(ParallelText.from_files(path, path, on_error="skip"))


def test_missing_files_and_directories_are_named(tmp_path: Path) -> None:
    here = written(tmp_path / "here", "a\n")
    for wrong, error in ((tmp_path / "none", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error, match=wrong.name):
            list(read_lines(wrong))
        with pytest.raises(error, match=wrong.name):
            ParallelText.from_tsv(wrong)
        with pytest.raises(error, match=wrong.name):
            ParallelText.from_files(here, wrong)


def test_a_file_that_is_one_endless_line_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformer_tutorial.data.LONGEST_LINE", 1000)
    with pytest.raises(DataError, match=r"x:2: the line has more than 1,000 bytes"):
        lines_of(tmp_path / "x", "a\n" + "b" * 1001)
    assert lines_of(tmp_path / "x", "b" * 999 + "\n") == ["b" * 999]


# Pairs


def test_a_tsv_gives_two_of_its_columns(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x.tsv", "\ufeffHi.\t嗨。\tCK\r\n I won! \t我赢了。\tCM\r\n", packed=True
    )
    assert list(ParallelText.from_tsv(path)) == [("Hi.", "嗨。"), ("I won!", "我赢了。")]
    assert list(ParallelText.from_tsv(path, 1, 0)) == [("嗨。", "Hi."), ("我赢了。", "I won!")]
    assert list(ParallelText.from_tsv(path, 0, 2)) == [("Hi.", "CK"), ("I won!", "CM")]


def test_two_files_give_pairs_and_odd_separators_shift_nothing(tmp_path: Path) -> None:
    one = written(tmp_path / "a", "ein\u2028s\nzwei\u0085x\ndrei\n")
    other = written(tmp_path / "b", "one\ntwo\nthree")
    pairs = [("ein\u2028s", "one"), ("zwei\u0085x", "two"), ("drei", "three")]
    text = ParallelText.from_files(one, other)
    assert list(text) == list(text) == pairs
    assert text.report == ReadReport(3, 3)
    assert list(pickle.loads(pickle.dumps(text))) == pairs


BAD_SIDES: dict[str, str | bytes] = {
    "empty side": "",
    "control character": "a\x00b",
    "too long": "a" * 41,
    "not UTF-8": b"\xff",
}


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("reason", BAD_SIDES)
@pytest.mark.parametrize("kind", ["tsv", "files"])
def test_a_bad_side_takes_its_pair_with_it(
    tmp_path: Path, kind: str, reason: str, side: int
) -> None:
    bad = BAD_SIDES[reason]
    rows: list[list[bytes]] = [[b"a", b"A"], [b"b", b"B"], [b"c", b"C"]]
    rows[1][side] = bad if isinstance(bad, bytes) else bad.encode()
    paths = [tmp_path / "one", tmp_path / "other"]
    if kind == "tsv":
        written(paths[0], b"\n".join(b"\t".join(row) for row in rows))
        place = paths[0]
    else:
        for path, column in zip(paths, zip(*rows, strict=True), strict=True):
            written(path, b"\n".join(column))
        place = paths[side]

    def text(on_error: Any) -> ParallelText:
        if kind == "tsv":
            return ParallelText.from_tsv(paths[0], on_error=on_error, max_characters=40)
        return ParallelText.from_files(*paths, on_error=on_error, max_characters=40)

    with pytest.raises(DataError) as caught:
        list(text("raise"))
    assert str(caught.value).startswith(f"{place}:2: ")
    assert caught.value.reason == reason
    lenient = text("skip")
    assert list(lenient) == [("a", "A"), ("c", "C")]
    assert lenient.report == ReadReport(3, 2, {reason: 1})
    assert str(lenient.report) == f"3 read, 2 kept, 1 skipped (1 {reason})"


@pytest.mark.parametrize("blank", ["", " ", "\u3000", "\xa0\t"])
def test_blank_is_empty(tmp_path: Path, blank: str) -> None:
    one, other = written(tmp_path / "a", f"x\n{blank}\ny"), written(tmp_path / "b", "X\nB\nY")
    text = ParallelText.from_files(one, other, on_error="skip")
    assert list(text) == [("x", "X"), ("y", "Y")]


def test_the_longest_side_allowed_is_allowed(tmp_path: Path) -> None:
    path = written(tmp_path / "x", "a" * 40 + "\t" + "b" * 40)
    assert len(list(ParallelText.from_tsv(path, max_characters=40))) == 1
    path = written(tmp_path / "x", "w " * 10_000 + "\tb")
    with pytest.raises(DataError, match="x:1: 19,999 characters, max_characters allows 5,000"):
        list(ParallelText.from_tsv(path))


def test_tabs_are_part_of_a_line_of_two_files(tmp_path: Path) -> None:
    one, other = written(tmp_path / "a", "x\ty\n"), written(tmp_path / "b", "X\n")
    assert list(ParallelText.from_files(one, other)) == [("x\ty", "X")]


@pytest.mark.parametrize("row", ["b", "b\tB\tβ", ""])
def test_a_row_with_other_columns_is_refused_or_counted(tmp_path: Path, row: str) -> None:
    path = written(tmp_path / "x.tsv", f"a\tA\n{row}\nc\tC\n")
    with pytest.raises(DataError, match=r"x\.tsv:2: [13] columns, expected 2, as before"):
        list(ParallelText.from_tsv(path))
    text = ParallelText.from_tsv(path, on_error="skip")
    assert list(text) == [("a", "A"), ("c", "C")]
    assert text.report.skipped == {"wrong number of columns": 1}


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x.tsv", "a\tA\n")
    with pytest.raises(DataError, match=r"x\.tsv:1: 2 columns, expected at least 6"):
        list(ParallelText.from_tsv(path, 0, 5))
    with pytest.raises(ValueError, match="columns are counted from 0"):
        ParallelText.from_tsv(path, -1, 0)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize(("short", "long"), [(2, 5), (0, 1), (4, 5)])
@pytest.mark.parametrize("swap", [False, True])
def test_unequal_line_counts_are_always_an_error(
    tmp_path: Path, on_error: Any, short: int, long: int, swap: bool
) -> None:
    one = written(tmp_path / "short", "x\n" * short)
    other = written(tmp_path / "long", "x\n" * long)
    paths = (other, one) if swap else (one, other)
    text = ParallelText.from_files(*paths, on_error=on_error)
    message = f"short:{short}: the file ends after {short} lines, but .*long has {long}"
    with pytest.raises(DataError, match=message):
        list(text)


@pytest.mark.usefixtures("unchecked")
def test_wrong_arguments_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "x", "")
    with pytest.raises(ValueError, match="max_characters must be at least 1, got 0"):
        ParallelText.from_tsv(path, max_characters=0)
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', got 'ignore'"):
        ParallelText([path], on_error="ignore")  # type: ignore[arg-type]


def test_the_report_is_that_of_the_last_whole_pass(tmp_path: Path) -> None:
    text = ParallelText.from_tsv(written(tmp_path / "x", "a\tA\nb\tB\n"))
    next(iter(text))
    assert text.report == ReadReport()
    list(text)
    list(text)
    assert str(text.report) == "2 read, 2 kept, 0 skipped"


# Splits


def sentences(pairs: Iterable[Pair], side: int) -> set[str]:
    return {pair[side] for pair in pairs}


def check_split(splits: Splits, pairs: Sequence[Pair]) -> None:
    parts = (splits.train, splits.validation, splits.test)
    together = [pair for part in parts for pair in part]
    assert sorted(together) == sorted(set(pairs))
    for side in (0, 1):
        for one in range(3):
            for other in range(one):
                assert not sentences(parts[one], side) & sentences(parts[other], side)
    place = {pair: number for number, pair in reversed(list(enumerate(pairs)))}
    for part in parts:
        assert part == sorted(part, key=place.__getitem__)


@given(
    pairs=st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from("ABCDEFGHIJ"))),
    sizes=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    seed=st.integers(0, 9),
)
def test_no_sentence_of_either_side_stands_in_two_parts(
    pairs: list[Pair], sizes: tuple[int, int], seed: int
) -> None:
    try:
        splits = split_pairs(pairs, *sizes, seed=seed)
    except ValueError:
        return
    check_split(splits, pairs)
    assert splits.train
    assert len(splits.validation) <= sizes[0]
    assert len(splits.test) <= sizes[1]
    assert bool(splits.validation) == bool(sizes[0])
    assert bool(splits.test) == bool(sizes[1])


def test_a_split_has_the_sizes_asked_for_and_follows_its_seed() -> None:
    pairs = [(f"s{i % 900}", f"t{i}") for i in range(1000)] + [("s1", "t1"), ("x", "t2")]
    first = split_pairs(pairs, 50, 40, seed=0)
    check_split(first, pairs)
    assert (len(first.validation), len(first.test)) == (50, 40)
    assert split_pairs(iter(pairs), 50, 40, seed=0) == first
    assert split_pairs(pairs, 50, 40, seed=1) != first
    assert split_pairs(pairs, 0, 0, seed=1).train == list(dict.fromkeys(pairs))


def test_a_split_that_cannot_be_is_refused() -> None:
    chain = [(f"s{i // 2}", f"t{(i + 1) // 2}") for i in range(20)]  # each shares with the next
    with pytest.raises(ValueError, match=r"no pair is left for test: .* has 20 of 20"):
        split_pairs(chain, 0, 5, seed=0)
    with pytest.raises(ValueError, match="leave some of the 20 distinct pairs, got 10 and 10"):
        split_pairs(chain * 2, 10, 10, seed=0)
    with pytest.raises(ValueError, match="got -1 and 0"):
        split_pairs(chain, -1, 0, seed=0)
    with pytest.raises(ValueError, match="of the 0 distinct pairs"):
        split_pairs([], 0, 0, seed=0)


def test_exclude_drops_what_shares_a_side_and_streams() -> None:
    def endless() -> Iterator[Pair]:
        while True:
            yield from (("a", "A"), ("a", "new"), ("new", "B"), ("c", "C"), ("A", "a"))

    stream = exclude(endless(), [("a", "A"), ("b", "B")])
    assert [next(stream) for _ in range(4)] == [("c", "C"), ("A", "a")] * 2
    assert list(exclude([("a", "A")], [])) == [("a", "A")]


# Corpora in a folder


def test_tatoeba_is_split_and_keeps_its_attribution(tmp_path: Path) -> None:
    rows = [f"E{i}\tC{i}\tby {i}" for i in range(2300)] + ["E0\tC1\tby nobody", "E5\tC5\tagain"]
    written(tmp_path / "cmn.txt", "\n".join(rows))
    splits = load_corpus("tatoeba-zh-en", tmp_path)
    assert (len(splits.validation), len(splits.test)) == (1000, 1000)
    check_split(splits, [(f"C{i}", f"E{i}") for i in range(2300)] + [("C1", "E0")])
    assert splits.attribution["C7", "E7"] == "by 7"
    assert splits.attribution["C5", "E5"] == "by 5"


@pytest.mark.parametrize("packed", [False, True])
def test_tatoeba_already_split(tmp_path: Path, packed: bool) -> None:
    end = ".gz" if packed else ""
    written(tmp_path / f"train.tsv{end}", "嗨。\tHi.\tCK\n", packed)
    written(tmp_path / f"val.tsv{end}", "跑\tRun\tCM\n", packed)
    splits = load_corpus("tatoeba-zh-en", folder=tmp_path)
    assert splits.train == [("嗨。", "Hi.")]
    assert (splits.validation, splits.test) == ([("跑", "Run")], [])
    assert splits.attribution["嗨。", "Hi."] == "CK"
    written(tmp_path / f"test.tsv{end}", "等\tWait\tCM\n", packed)
    assert load_corpus("tatoeba-zh-en", folder=str(tmp_path)).test == [("等", "Wait")]


def test_multi30k_from_a_folder(tmp_path: Path) -> None:
    for name in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            written(tmp_path / f"{name}.{language}.gz", f" {name} {language}\u2028 \n", packed=True)
    splits = load_corpus("multi30k-de-en", tmp_path)
    assert splits.train == [("train de", "train en")]
    assert splits.validation == [("val de", "val en")]
    assert splits.test == [("test_2016_flickr de", "test_2016_flickr en")]
    assert splits.attribution == {}
    (tmp_path / "test_2016_flickr.de.gz").unlink()
    assert load_corpus("multi30k-de-en", tmp_path).test == []
    (tmp_path / "val.en.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"holds neither val\.en\.gz nor val\.en"):
        load_corpus("multi30k-de-en", tmp_path)


def test_an_unknown_corpus_is_refused_and_the_known_are_named() -> None:
    with pytest.raises(ValueError, match="tatoeba-zh-en, multi30k-de-en; got 'wmt14'"):
        load_corpus("wmt14")


def test_every_corpus_is_pinned_and_says_its_terms() -> None:
    for name, corpus in CORPORA.items():
        assert corpus.name == name
        assert corpus.licence in corpus.terms
        for path, (address, mirror, sha256) in corpus.files.items():
            assert address.startswith("https://raw.githubusercontent.com/")
            assert mirror.startswith("https://cdn.jsdelivr.net/gh/")
            commit = address.split("/")[5]
            assert len(commit) == 40
            assert f"@{commit}/" in mirror
            assert address.endswith(path)
            assert mirror.endswith(path)
            assert len(sha256) == 64


# Downloads

BODY = gzip.compress(b"Hallo\n" * 50)


class Server(ThreadingHTTPServer):
    """Serves BODY at /good…, and other things elsewhere; counts what it was asked for."""

    daemon_threads = True
    requests: list[str]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        body = b"<html>sorry</html>" if self.path.startswith("/wrong") else BODY
        self.send_response(200)
        cut = self.path.startswith("/cut")
        self.send_header("Content-Length", str(len(body) + 1000 * cut))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.requests = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def nobody_there() -> str:
    """An address at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/file"


@pytest.fixture
def corpus(server: Server) -> Callable[..., Corpus]:
    server.requests.clear()

    def make(*addresses: str) -> Corpus:
        base = f"http://127.0.0.1:{server.server_port}"
        one, mirror = (a if a.startswith("http") else f"{base}/{a}" for a in addresses)
        sha256 = hashlib.sha256(BODY).hexdigest()
        files = {"train.de.gz": (one, mirror, sha256)}
        return Corpus(
            "small", "greetings", "free for all", "de", "en", files, lambda _: Splits([], [], [])
        )

    return make


def test_a_download_is_kept_and_the_terms_are_said_before_it(
    tmp_path: Path, server: Server, corpus: Callable[..., Corpus]
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        assert not server.requests
        said.append(text)

    small = corpus("good", "good-mirror")
    folder = fetch(small, tmp_path / "new", say)
    assert folder == tmp_path / "new" / "small"
    assert [path.name for path in folder.iterdir()] == ["train.de.gz"]
    assert (folder / "train.de.gz").read_bytes() == BODY
    assert said == ["small: greetings\nlicence: free for all"]
    assert server.requests == ["/good"]
    assert fetch(small, tmp_path / "new", say) == folder
    assert (server.requests, len(said)) == (["/good"], 1)


def test_a_download_prints_its_terms_to_standard_error_and_nothing_else(
    tmp_path: Path, corpus: Callable[..., Corpus], capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(corpus("missing", "good"), tmp_path)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err == "small: greetings\nlicence: free for all\n"


@pytest.mark.parametrize("first", ["wrong", "cut", "missing", "nobody"])
def test_the_mirror_helps_out(tmp_path: Path, corpus: Callable[..., Corpus], first: str) -> None:
    folder = fetch(corpus(nobody_there() if first == "nobody" else first, "good"), tmp_path)
    assert [path.name for path in folder.iterdir()] == ["train.de.gz"]
    assert (folder / "train.de.gz").read_bytes() == BODY


@pytest.mark.parametrize("first", ["wrong", "cut", "missing", "nobody"])
@pytest.mark.parametrize("second", ["wrong", "cut", "nobody"])
def test_without_any_good_address_nothing_is_kept_and_the_way_out_is_said(
    tmp_path: Path, corpus: Callable[..., Corpus], first: str, second: str
) -> None:
    ways = [nobody_there() if way == "nobody" else way for way in (first, second)]
    small = corpus(*ways)
    with pytest.raises(DownloadError) as caught:
        fetch(small, tmp_path, lambda text: None)
    message = str(caught.value)
    for address in small.files["train.de.gz"][:2]:
        assert address in message
    assert "load_corpus('small', folder=...)" in message
    assert "train.de.gz" in message
    assert list((tmp_path / "small").iterdir()) == []


def test_a_damaged_file_in_the_cache_is_fetched_again(
    tmp_path: Path, corpus: Callable[..., Corpus]
) -> None:
    small = corpus("good", "good")
    (tmp_path / "small").mkdir()
    path = written(tmp_path / "small" / "train.de.gz", BODY[:-1])
    fetch(small, tmp_path)
    assert path.read_bytes() == BODY


def test_downloads_have_time_limits_and_no_progress_bar(
    tmp_path: Path, corpus: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Downloader(pooch.HTTPDownloader):  # type: ignore[misc]
        def __init__(self, **options: Any) -> None:
            made.append(options)
            super().__init__(**options)

    monkeypatch.setattr(pooch, "HTTPDownloader", Downloader)
    fetch(corpus("good", "good"), tmp_path)
    (options,) = made
    assert max(options["timeout"]) <= 60
    assert not options.get("progressbar")


def test_load_corpus_fetches_into_the_cache_once(
    tmp_path: Path, server: Server, corpus: Callable[..., Corpus], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CORPORA, "small", corpus("good", "good"))
    for _ in range(2):
        assert load_corpus("small", cache=tmp_path) == Splits([], [], [])
    assert server.requests == ["/good"]


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("pooch", lambda: fetch(CORPORA["tatoeba-zh-en"], "nowhere")),
        ("sentencepiece", lambda: SubwordTokenizer.train(["a"], 300)),
    ],
)
def test_a_missing_extra_is_named(
    package: str, use: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == package:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "transformer-tutorial\[train\]"'):
        use()


# Subwords


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request: pytest.FixtureRequest) -> SubwordTokenizer:
    return SubwordTokenizer.train(TEXTS, 400, request.param)


@pytest.fixture(scope="module")
def unigram() -> SubwordTokenizer:
    return SubwordTokenizer.train(TEXTS, 400)


def check_round_trip(tokenizer: SubwordTokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert (ids[0], ids[-1]) == (tokenizer.bos_id, tokenizer.eos_id)
    special = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id}
    assert not special & set(ids[1:-1])
    assert max(ids) < len(tokenizer)
    assert tokenizer.decode(ids) == tokenizer.decode(ids[1:-1]) == text
    assert tokenizer.pieces(text) == [tokenizer._processor.id_to_piece(i) for i in ids[1:-1]]


HARD = [
    *TEXTS[:8],
    "", " ", "  ", " a", "a ", "  a  b  ", "\t", "a\tb", "\u3000a\u3000", "a\xa0b",
    "▁", "▁▁", " ▁ ", "a▁b▁", "▁我▁爱", "▅", "⁇", "\ue000▁\ue001", "<s>", "</s>", "<pad>",
    "<unk>", "<0x41>", "▁<0x41>", "\x00", "a\x00b", "\x01\x1f\x7f", "\u2028", "\u0085", "\x0c", "\r",
    "e\u0301é", "ﬁ ② Ａ", "，！？；：（）", "😀👩‍👩‍👧", "\ufeffa", "\ufffd", "\U0010ffff", "𠮷野家", "a\nb",
]  # fmt: skip


@pytest.mark.parametrize("text", HARD, ids=ascii)
def test_hard_texts_come_back_exactly(tokenizer: SubwordTokenizer, text: str) -> None:
    check_round_trip(tokenizer, text)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_exactly(unigram: SubwordTokenizer, text: str) -> None:
    check_round_trip(unigram, text)


@given(text=st.text(st.sampled_from("▁ a我\ue000\t<>")))
def test_any_text_with_the_sign_for_spaces_comes_back_exactly(
    unigram: SubwordTokenizer, text: str
) -> None:
    check_round_trip(unigram, text)


def test_long_texts_come_back_exactly(unigram: SubwordTokenizer) -> None:
    check_round_trip(unigram, "我爱你。 I love you. ▁" * 2000)


def test_pieces_of_a_text_are_its_ids_in_plain_sentencepiece(tokenizer: SubwordTokenizer) -> None:
    plain = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.to_bytes())
    for text in TEXTS:
        assert tokenizer.encode(text)[1:-1] == plain.encode(text)
    assert "".join(tokenizer.pieces("I love you.")) == "▁I▁love▁you."


def test_a_word_is_the_same_pieces_at_the_beginning_and_inside(unigram: SubwordTokenizer) -> None:
    monday = unigram.pieces("Monday")
    assert unigram.pieces("x Monday")[-len(monday) :] == monday


def test_half_of_a_surrogate_pair_is_refused(unigram: SubwordTokenizer) -> None:
    with pytest.raises(
        ValueError, match=r"character 2 of the text is U\+D800, half of a surrogate"
    ):
        unigram.encode("ab\ud800")
    with pytest.raises(ValueError, match=r"U\+DFFF"):
        unigram.pieces("\udfff▁")
    with pytest.raises(ValueError, match=r"U\+DC00"):
        SubwordTokenizer.train(["fine", "a\udc00"], 300)


def test_decoding_stops_at_the_end_and_skips_only_padding_and_begin(
    unigram: SubwordTokenizer,
) -> None:
    pad, bos, eos = unigram.pad_id, unigram.bos_id, unigram.eos_id
    one, two = unigram.encode("I love")[1:-1], unigram.encode("you.")[1:-1]
    assert unigram.decode([pad, bos, *one, pad, *two, eos, *one, eos]) == "I love you."
    assert unigram.decode(iter([bos, *one, eos])) == "I love"
    assert unigram.decode([]) == unigram.decode([eos, *one]) == unigram.decode([bos, pad]) == ""
    assert "⁇" in unigram.decode([*one, unigram.unk_id])
    for wrong in (-1, len(unigram)):
        with pytest.raises(ValueError, match=f"id {wrong} is not in the vocabulary of 0 to 399"):
            unigram.decode([*one, wrong])


def test_special_ids_are_read_from_the_model() -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        vocab_size=400,
        pad_id=3,
        bos_id=2,
        eos_id=0,
        unk_id=1,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    tokenizer = SubwordTokenizer(model.getvalue())
    special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id)
    assert special == (3, 2, 0, 1)
    check_round_trip(tokenizer, " 你好▁")


def test_ids_of_a_trained_tokenizer_are_those_of_the_vocabulary(unigram: SubwordTokenizer) -> None:
    names = ("pad_id", "bos_id", "eos_id", "unk_id")
    assert [getattr(unigram, n) for n in names] == [getattr(Vocabulary, n) for n in names]
    assert isinstance(unigram, Tokenizer)
    assert isinstance(Vocabulary.from_texts(["a"]), Tokenizer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bos_id": 1, "eos_id": 2, "byte_fallback": True}, "has no pad id"),
        ({"pad_id": 3, "bos_id": -1, "byte_fallback": True}, "has no bos id"),
        ({"pad_id": 3, "byte_fallback": False}, "has no byte pieces"),
    ],
)
def test_a_model_that_lacks_something_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(ENGLISH),
        model_writer=model,
        vocab_size=290 if options["byte_fallback"] else 36,
        minloglevel=2,
        **options,
    )
    path = written(tmp_path / "source.spm", model.getvalue())
    with pytest.raises(ValueError, match=rf"source\.spm: .*{message}"):
        SubwordTokenizer.load(path)


@pytest.mark.parametrize("content", [b"", b"nonsense"])
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"x\.spm: these \d bytes are not a sentencepiece model"):
        SubwordTokenizer.load(written(tmp_path / "x.spm", content))
    with pytest.raises(FileNotFoundError):
        SubwordTokenizer.load(tmp_path / "none.spm")


def test_a_tokenizer_is_its_bytes(tmp_path: Path, tokenizer: SubwordTokenizer) -> None:
    tokenizer.save(tmp_path / "x.spm")
    copies = [
        SubwordTokenizer.load(tmp_path / "x.spm"),
        SubwordTokenizer.from_bytes(tokenizer.to_bytes()),
        pickle.loads(pickle.dumps(tokenizer)),
        copy.deepcopy(tokenizer),
    ]
    for other in copies:
        assert other.to_bytes() == tokenizer.to_bytes()
        assert len(other) == len(tokenizer) == 400
        assert other.encode("你好▁ world") == tokenizer.encode("你好▁ world")


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_learning_is_repeatable_and_quiet(
    model_type: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = SubwordTokenizer.train(TEXTS, 350, model_type).to_bytes()
    assert SubwordTokenizer.train(iter(TEXTS), 350, model_type).to_bytes() == first
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


def test_learning_uses_every_line() -> None:
    """Also those that are very long, or hold a sign that sentencepiece keeps for itself."""
    for line in ("ж" * 2500, "▅ жжж", "\x00 жжж", "\t жжж"):
        pieces = SubwordTokenizer.train([line] + ENGLISH * 5, 290).pieces("жжж")
        assert not any(piece.startswith("<0x") for piece in pieces), line[:5]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_an_impossible_vocab_size_says_what_is_possible(model_type: str) -> None:
    with pytest.raises(ValueError, match=r"vocab_size=99999 is too large .* at most \d+") as much:
        SubwordTokenizer.train(ENGLISH, 99_999, model_type)
    most = int(str(much.value).split("at most ")[1].split()[0])
    assert len(SubwordTokenizer.train(ENGLISH, most, model_type)) == most
    with pytest.raises(ValueError, match=r"vocab_size=100 is too small: .* are \d+") as little:
        SubwordTokenizer.train(ENGLISH, 100, model_type)
    least = int(str(little.value).rsplit(" ", 1)[1])
    assert len(SubwordTokenizer.train(ENGLISH, least + 1, model_type)) == least + 1


@pytest.mark.parametrize("texts", [[], [""], ["", " ", "\t"]])
def test_there_must_be_text(texts: list[str]) -> None:
    with pytest.raises(ValueError, match="there is no text to learn pieces from"):
        SubwordTokenizer.train(texts, 300)


def test_other_wrong_arguments_of_learning() -> None:
    with pytest.raises(ValueError, match="model_type must be 'unigram' or 'bpe', got 'word'"):
        SubwordTokenizer.train(TEXTS, 300, "word")
    with pytest.raises(ValueError, match="vocab_size"):
        SubwordTokenizer.train(TEXTS, 0)


def test_an_error_of_the_text_comes_through() -> None:
    def texts() -> Iterator[str]:
        yield "a"
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        SubwordTokenizer.train(texts(), 300)


# Batches


class Numbers:
    """A tokenizer for tests: a text is numbers, and a number is its id."""

    pad_id, bos_id, eos_id = 0, 1, 2

    def __len__(self) -> int:
        return 1_000_000

    def encode(self, text: str) -> list[int]:
        return [self.bos_id, *map(int, text.split()), self.eos_id]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(str(index) for index in ids if index > 2)


def numbered_pairs(lengths: Iterable[tuple[int, int]]) -> list[Pair]:
    """Pairs of given numbers of tokens, marks not counted; the first tells the pair."""
    return [
        (" ".join([str(i + 3)] * one), " ".join([str(i + 3)] * other))
        for i, (one, other) in enumerate(lengths)
    ]


def random_pairs(count: int, seed: int = 0, longest: int = 20) -> list[Pair]:
    draw = random.Random(seed)
    return numbered_pairs(
        (draw.randint(1, longest), draw.randint(1, longest)) for _ in range(count)
    )


def batches(pairs: Iterable[Pair], max_tokens: int = 100, **options: Any) -> TokenBatches:
    options.setdefault("max_length", 50)
    return TokenBatches(pairs, Numbers(), Numbers(), max_tokens=max_tokens, **options)


def rows_of(batch: Batch) -> list[Pair]:
    decode = Numbers().decode
    return [
        (decode(src), decode(tgt))
        for src, tgt in zip(batch.src.tolist(), batch.tgt.tolist(), strict=True)
    ]


def order_of(data: Iterable[Batch]) -> list[list[Pair]]:
    return [rows_of(batch) for batch in data]


def flat(order: list[list[Pair]]) -> list[Pair]:
    return [pair for rows in order for pair in rows]


class Stream:
    """Pairs that can be iterated again, and are not a list."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def __iter__(self) -> Iterator[Pair]:
        return iter(self.pairs)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9))),
    max_tokens=st.integers(11, 60),
    pool=st.none() | st.integers(1, 20),
    shuffle=st.booleans(),
)
def test_batches_are_the_data_and_keep_to_their_limit(
    lengths: list[tuple[int, int]], max_tokens: int, pool: int | None, shuffle: bool
) -> None:
    pairs = numbered_pairs(lengths)
    data = (
        batches(pairs, max_tokens, shuffle=shuffle)
        if pool is None
        else batches(Stream(pairs), max_tokens, shuffle=shuffle, pool=pool)
    )
    seen = []
    for batch in data:
        src, tgt = batch.src, batch.tgt
        assert src.dtype == tgt.dtype == torch.int64
        assert len(src) == len(tgt) >= 1
        assert len(src) * max(src.size(1), tgt.size(1)) <= max_tokens
        assert batch.num_tokens == (shift_targets(tgt)[1] != 0).sum()
        for side in (src, tgt):
            assert (side[:, 0] == 1).all()
            assert ((side == 2).sum(1) == 1).all()
            assert (side != 0).any(0).all()  # no column is padding alone
        seen += rows_of(batch)
    assert sorted(seen) == sorted(pairs)
    assert data.report == ReadReport(len(pairs), len(pairs))


@pytest.mark.parametrize("kind", [list, Stream])
def test_the_order_is_a_function_of_seed_and_epoch_alone(kind: Callable[[Any], Any]) -> None:
    pairs = random_pairs(200)

    def order(seed: int, epoch: int) -> list[list[Pair]]:
        data = batches(kind(pairs), seed=seed, pool=70)
        data.set_epoch(epoch)
        return order_of(data)

    torch.manual_seed(1)
    random.seed(1)
    first = order(0, 0)
    torch.manual_seed(2)
    random.seed(2)
    assert order(0, 0) == first
    others = [order(0, 1), order(1, 0), order(0, 10), order(10, 0)]
    for other in others:
        assert other != first
        assert sorted(flat(other)) == sorted(pairs)
    assert others[2] != others[3]


def test_an_epoch_can_be_had_again() -> None:
    data = batches(random_pairs(100))
    orders = []
    for epoch in (3, 0, 3):
        data.set_epoch(epoch)
        orders.append(order_of(data))
    assert orders[0] == orders[2] != orders[1]
    assert order_of(data) == orders[2]
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        data.set_epoch(-1)


def test_the_order_is_the_same_on_every_machine() -> None:
    pairs = numbered_pairs([(1, 1)] * 12)
    order = order_of(batches(pairs, max_tokens=9, seed=5))
    numbers = [[int(source) - 3 for source, _ in rows] for rows in order]
    assert numbers == [[2, 3, 0], [1, 11, 5], [9, 6, 4], [8, 7, 10]]


def test_without_shuffling_batches_go_from_short_to_long_in_every_epoch() -> None:
    pairs = random_pairs(100)
    data = batches(pairs, shuffle=False)
    first = order_of(data)
    data.set_epoch(4)
    assert order_of(data) == first
    longest = [max(len(text.split()) for pair in rows for text in pair) for rows in first]
    assert longest == sorted(longest)


def test_like_lengths_come_together() -> None:
    pairs = random_pairs(2000, longest=40)

    def padding(data: Iterable[Batch]) -> float:
        sides = [side for batch in data for side in (batch.src, batch.tgt)]
        return sum(int((side == 0).sum()) for side in sides) / sum(side.numel() for side in sides)

    drawn = [
        next(iter(batches(pairs[i : i + 12], max_tokens=1000))) for i in range(0, len(pairs), 12)
    ]
    assert padding(batches(pairs, max_tokens=500)) < 0.2 < 0.4 < padding(drawn)


def test_batches_are_shuffled_against_each_other() -> None:
    order = order_of(batches(random_pairs(500)))
    longest = [max(len(text.split()) for pair in rows for text in pair) for rows in order]
    ups = sum(one < other for one, other in pairwise(longest))
    assert 0.25 < ups / len(longest) < 0.75


def test_a_batch_may_be_one_sentence() -> None:  # BR-71
    (batch,) = batches([("7 8", "9")])
    assert batch.src.tolist() == [[1, 7, 8, 2]]
    assert batch.tgt.tolist() == [[1, 9, 2]]
    assert batch.num_tokens == 2
    *_, last = batches(numbered_pairs([(2, 2)] * 5), max_tokens=8, shuffle=False)
    assert (last.src.shape, last.tgt.shape) == ((1, 4), (1, 4))


def test_no_pairs_give_no_batches() -> None:
    assert list(batches([])) == []
    assert list(batches(Stream([]))) == []


def test_labels_are_counted_as_the_loss_counts_them() -> None:  # BR-73
    (batch,) = batches([("4", "5 6"), ("4", "7")], shuffle=False)
    assert sorted(batch.tgt.tolist()) == [[1, 5, 6, 2], [1, 7, 2, 0]]
    assert batch.num_tokens == 5


class PadIsEnd(Numbers):
    pad_id = eos_id = 2


class OtherPad(Numbers):
    pad_id = 5


def test_padding_needs_an_id_of_its_own() -> None:  # BR-21
    for one, other, side in (
        (PadIsEnd(), Numbers(), "source"),
        (Numbers(), PadIsEnd(), "target"),
    ):
        with pytest.raises(
            ValueError, match=f"must differ, the {side} tokenizer has \\(2, 1, 2\\)"
        ):
            TokenBatches([("4", "5")], one, other, max_tokens=9, max_length=9)
    with pytest.raises(ValueError, match="the same pad_id, got 0 and 5"):
        TokenBatches([("4", "6")], Numbers(), OtherPad(), max_tokens=9, max_length=9)


@pytest.mark.parametrize("kind", [list, Stream])
@pytest.mark.parametrize(
    ("long", "options"),
    [
        ((9, 1), {"max_length": 10}),  # a source of 11 tokens
        ((1, 10), {"max_length": 10}),  # a target of 12, of which 11 are read
        ((9, 1), {"max_tokens": 10}),
        ((1, 9), {"max_tokens": 10}),
        ((9999, 1), {}),
    ],
)
def test_a_pair_that_is_too_long_is_refused_or_counted(
    kind: Callable[[Any], Any], long: tuple[int, int], options: dict[str, int]
) -> None:
    pairs = numbered_pairs([(2, 3), long, (3, 2)])
    with pytest.raises(
        ValueError, match=f"pair 2 has {long[0] + 2} source and {long[1] + 2} target"
    ):
        list(batches(kind(pairs), **options))
    data = batches(kind(pairs), too_long="skip", **options)
    assert sorted(flat(order_of(data))) == [pairs[0], pairs[2]]
    assert data.report == ReadReport(3, 2, {"too long": 1})


def test_the_longest_pair_that_a_model_reads_is_not_too_long() -> None:
    pairs = numbered_pairs([(8, 9)])  # 10 source tokens, 11 target tokens, of which 10 are read
    (batch,) = batches(pairs, max_length=10, max_tokens=11)
    assert shift_targets(batch.tgt)[0].shape == batch.src.shape == (1, 10)


def test_a_list_complains_at_once() -> None:
    with pytest.raises(ValueError, match="pair 1 has 101 source"):
        batches(numbered_pairs([(99, 1)]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_length": 0}, "max_length must be at least 1, got 0"),
        ({"pool": 0}, "pool must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batches([], **options)


@pytest.mark.usefixtures("unchecked")
def test_a_wrong_word_for_too_long_is_named() -> None:
    with pytest.raises(ValueError, match="too_long must be 'raise' or 'skip', got 'cut'"):
        TokenBatches(
            [],
            Numbers(),
            Numbers(),
            max_tokens=1,
            max_length=1,
            too_long="cut",  # type: ignore[arg-type]
        )


def test_what_can_be_read_only_once_is_refused() -> None:
    with pytest.raises(TypeError, match="a generator is empty after the first epoch"):
        batches(pair for pair in [("4", "5")])


def test_a_list_is_tokenised_once_and_not_changed() -> None:
    calls = []

    class Counting(Numbers):
        def encode(self, text: str) -> list[int]:
            calls.append(text)
            return super().encode(text)

    pairs = random_pairs(20)
    before = list(pairs)
    data = TokenBatches(pairs, Counting(), Counting(), max_tokens=100, max_length=50)
    for _ in range(3):
        list(data)
    assert len(calls) == 40
    assert pairs == before


def test_a_batch_moves_to_a_device() -> None:
    (batch,) = batches([("7 8", "9")])
    moved = batch.to("meta")
    assert (moved.src.device.type, moved.tgt.device.type) == ("meta", "meta")
    assert moved.num_tokens == 2
    assert batch.to(torch.device("cpu")).src.tolist() == batch.src.tolist()


def test_batches_work_with_any_tokenizer_of_the_book(unigram: SubwordTokenizer) -> None:
    words = Vocabulary.from_texts(target for _, target in DATES)
    data = TokenBatches(DATES, unigram, words, max_tokens=600, max_length=60)
    decoded = [
        (unigram.decode(src), words.decode(tgt))
        for batch in data
        for src, tgt in zip(batch.src.tolist(), batch.tgt.tolist(), strict=True)
    ]
    assert sorted(decoded) == sorted(DATES)


def test_one_epoch_in_spawned_workers(unigram: SubwordTokenizer, tmp_path: Path) -> None:  # BR-60
    path = written(tmp_path / "x.tsv", "".join(f"{a}\t{b}\n" for a, b in DATES))
    stream = ParallelText.from_tsv(path)
    data = TokenBatches(stream, unigram, unigram, max_tokens=500, max_length=60, pool=80, seed=3)
    data.set_epoch(2)
    alone = list(pickle.loads(pickle.dumps(data)))
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    for one, other in zip(alone, loader, strict=True):
        assert torch.equal(one.src, other.src)
        assert torch.equal(one.tgt, other.tgt)
        assert one.num_tokens == other.num_tokens


@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_share_the_same_batches(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(Stream(random_pairs(150)), pool=60)
    alone = order_of(data)

    class Worker:
        num_workers = workers

        def __init__(self, number: int) -> None:
            self.id = number

    shares = []
    for number in range(workers):
        monkeypatch.setattr(
            "transformer_tutorial.data.get_worker_info", lambda number=number: Worker(number)
        )
        shares.append(order_of(data))
    for number, share in enumerate(shares):
        assert share == alone[number::workers]


@pytest.mark.usefixtures("unchecked")
def test_a_text_larger_than_memory_streams(tmp_path: Path) -> None:
    path, row = tmp_path / "x.tsv", f"{' 7' * 20}\t{' 8' * 20}\n"
    with path.open("w", encoding="utf-8") as file:
        for start in range(200):
            file.write(f"{start}{row}" * 1000)

    class Numbered:
        """5,000 pairs, none of them kept."""

        def __iter__(self) -> Iterator[Pair]:
            return ((str(i + 3), "7 " * (i % 11)) for i in range(5000))

    data = batches(Numbered(), max_tokens=1000, pool=500)
    tracemalloc.start()
    try:
        pairs = sum(1 for _ in exclude(ParallelText.from_tsv(path), [("a", "b")]))
        rows = sum(len(batch.src) for batch in data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (pairs, rows) == (200_000, 5000)
    assert path.stat().st_size > 15e6
    assert peak < 1e6
