"""Extract the English corpora from bare git directories: 16 kHz mono FLAC files and one JSONL manifest per split.

    python recipes/english/corpora.py librispeech harpervalley commonvoice      # transcribed speech
    python recipes/english/corpora.py unlabelled --hours 60                     # Common Voice clips without text
    python recipes/english/corpora.py report

A line of a manifest: id, audio (relative to the manifest), seconds, speaker, text (as in the corpus, null if it has
none), source, licence. Manifests are DATA/CORPUS/SPLIT.jsonl. A file that exists is not written again, so a run
that was stopped continues. Rules of the splits:

- Speakers of train, dev and test differ. A sentence of dev or test (lower case, without punctuation) is in no train
  manifest, one of test not in dev; in Harper Valley this holds for four words or more ("thank you" occurs everywhere).
  LibriSpeech's dev-clean and test-clean stay whole: both read from one book, and share 20 such sentences.
- A clip that occurs twice (same Common Voice id, or the same bytes) is kept once; dev and test come first.
- Common Voice clips without text have no speaker. Clip ids follow the time of recording: of labelled neighbours 10 to
  30 ids apart, 86 % have the same speaker, 300 to 1000 apart 12 %. Clips closer than 1000 ids to one of dev or test are
  left out, and the speakers of dev and test are ones whose clips lie within 300 ids. The release `commonvoice-v1` has
  neither speakers nor ids; it was recorded five years before the others and is taken as different speakers.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile as sf
import soxr

RUNS = Path(__file__).resolve().parents[2] / "runs/english"
MIRROR = RUNS / "mirrors"  # OWNER+NAME/repo: bare git directories
DATA = RUNS / "data"
RATE = 16_000
LIBRISPEECH = {"train": ("zhangrui0712+Voice-Age", "train-clean-5")}
LIBRISPEECH |= {s: ("Sparsha-M+Speech-Recognition", f"{s}-clean") for s in ("dev", "test")}
COMMON_VOICE = (  # repository, commit with the tables, folder
    ("Mydam0007+HW5_Dataset", "7b996c588b5676b67738e07953cfdc35a67006fc", "en"),
    ("creativepurus+Accent_Classification", "HEAD", "Data"),
)
COMMON_VOICE_V1 = ("hys89+myrepo", "HEAD", "asr")
HARPER = ("cricketclub+gridspace-stanford-harper-valley", "HEAD", "data")
SECONDS = (0.4, 30.0)  # shortest and longest utterance kept
FAINTEST = 1e-3  # a recording with a lower peak contains no speech
HELD_OUT_SPEAKERS, HELD_OUT_CLIPS = 60, 5  # Common Voice, each of dev and test
HELD_OUT_SPAN, HELD_OUT_MARGIN = 300, 1000  # in clip ids
HARPER_HELD_OUT_HOURS, HARPER_SPEAKER_HOURS = 0.5, 0.15  # each of dev and test; at most of one held-out speaker
JOIN_GAP, JOIN_LENGTH, PAD = 0.8, 15.0, 0.15  # seconds; Harper Valley's segments of one speaker are joined
COMMON_SENTENCE = 4  # words; shorter sentences of Harper Valley may be in all splits


@dataclass(frozen=True)
class Clip:
    """One utterance before extraction: `blob` names its file in `repo`, `start` and `end` its part in seconds."""

    id: str
    repo: str
    blob: str
    speaker: str
    text: str | None
    licence: str
    start: float | None = None
    end: float | None = None

    @property
    def source(self) -> str:
        return self.repo.replace("+", "/", 1)


class Repository:
    """Read-only access to a bare git directory through one `git cat-file --batch` process."""

    def __init__(self, name: str) -> None:
        self.git = ["git", f"--git-dir={MIRROR / name / 'repo'}"]
        if not (MIRROR / name / "repo").is_dir():
            raise SystemExit(f"{MIRROR / name}: not found; fetch {name.replace('+', '/', 1)} first")
        self.batch = subprocess.Popen([*self.git, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def files(self, commit: str, folder: str) -> dict[str, str]:
        """Path to blob of each file under a folder."""
        command = [*self.git, "ls-tree", "-r", commit, f"{folder}/"]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        return {path: head.split()[2] for head, path in (line.split("\t", 1) for line in lines)}

    def read(self, name: str) -> bytes:
        """The contents of a blob, given as hash or commit:path."""
        assert self.batch.stdin is not None
        assert self.batch.stdout is not None
        self.batch.stdin.write(f"{name}\n".encode())
        self.batch.stdin.flush()
        head = self.batch.stdout.readline().split()
        if len(head) != 3:
            raise FileNotFoundError(f"{self.git[1]}: no object {name}")
        contents = self.batch.stdout.read(int(head[2]))
        self.batch.stdout.read(1)
        return contents

    def table(self, name: str, delimiter: str) -> list[dict[str, str]]:
        lines = io.StringIO(self.read(name).decode())
        if delimiter == "\t":
            return list(csv.DictReader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE))
        return list(csv.DictReader(lines, delimiter=delimiter))


def normalised(text: str) -> str:
    """A sentence for comparison: lower case, letters, digits and apostrophes."""
    return " ".join(re.sub(r"[^a-z0-9']+", " ", text.lower().replace("’", "'")).split())


def shuffle_key(name: str) -> str:
    """A fixed pseudo-random order of names."""
    return hashlib.sha256(f"english {name}".encode()).hexdigest()


def librispeech() -> dict[str, list[Clip]]:
    """train-clean-5, dev-clean and test-clean in the corpus's own layout."""
    splits = {}
    for split, (repo, subset) in LIBRISPEECH.items():
        repository = Repository(repo)
        files = repository.files("HEAD", f"LibriSpeech/{subset}")
        texts: dict[str, str] = {}
        for path, blob in files.items():
            if path.endswith(".trans.txt"):
                lines = repository.read(blob).decode().splitlines()
                texts |= {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in lines}
        found = {Path(path).stem: blob for path, blob in files.items() if path.endswith(".flac")}
        clips = [Clip(i, repo, blob, i.split("-")[0], texts.get(i), "CC BY 4.0") for i, blob in found.items()]
        splits[split] = [clip for clip in clips if clip.text is not None]
    return splits


def common_voice_rows() -> Iterator[tuple[Clip, bool]]:
    """All clips with text of the recent releases, and whether they were validated."""
    for repo, commit, folder in COMMON_VOICE:
        repository = Repository(repo)
        files = {Path(p).stem: blob for p, blob in repository.files("HEAD", f"{folder}/clips").items()}
        for table, valid in (("validated", True), ("invalidated", False)):
            for row in repository.table(f"{commit}:{folder}/{table}.tsv", "\t"):
                name = Path(row["path"]).stem
                if name in files:
                    yield Clip(name, repo, files[name], row["client_id"], row["sentence"], "CC0 1.0"), valid


def clip_number(clip: Clip) -> int:
    return int(clip.id.rsplit("_", 1)[1])


def common_voice() -> dict[str, list[Clip]]:
    """Validated clips; 60 speakers with few clips, recorded together, are held out for each of dev and test."""
    speakers: dict[str, list[Clip]] = defaultdict(list)
    for clip, valid in common_voice_rows():
        if valid:
            speakers[clip.speaker].append(clip)
    candidates = []
    for name, clips in speakers.items():
        numbers = [clip_number(clip) for clip in clips]
        if 3 <= len(clips) <= 10 and max(numbers) - min(numbers) <= HELD_OUT_SPAN:
            candidates.append(name)
    candidates.sort(key=shuffle_key)
    dev, test = candidates[:HELD_OUT_SPEAKERS], candidates[HELD_OUT_SPEAKERS : 2 * HELD_OUT_SPEAKERS]
    held_out = {*dev, *test}
    train = [clip for name, clips in speakers.items() if name not in held_out for clip in clips]
    return {
        "train": train,
        "dev": [clip for name in dev for clip in speakers[name][:HELD_OUT_CLIPS]],
        "test": [clip for name in test for clip in speakers[name][:HELD_OUT_CLIPS]],
    }


def common_voice_v1() -> dict[str, list[Clip]]:
    """The first release's cv-valid-dev: lower-case text, no speakers."""
    repo, commit, folder = COMMON_VOICE_V1
    repository = Repository(repo)
    files = repository.files(commit, f"{folder}/cv-valid-dev")
    clips = []
    for row in repository.table(f"{commit}:{folder}/cv-valid-dev.csv", ","):
        name = Path(row["filename"]).stem
        blob = files.get(f"{folder}/{row['filename']}")
        if blob:
            clips.append(Clip(f"cv1-{name}", repo, blob, f"cv1-{name}", row["text"], "CC0 1.0"))
    return {"train": clips}


def unlabelled() -> dict[str, list[Clip]]:
    """Clips without text in a fixed random order, none near a clip of dev or test."""
    labelled = {clip.id for clip, _ in common_voice_rows()}
    splits = common_voice()
    held_out = sorted(clip_number(clip) for split in ("dev", "test") for clip in splits[split])
    clips = {}
    for repo, _, folder in COMMON_VOICE:
        for path, blob in Repository(repo).files("HEAD", f"{folder}/clips").items():
            clip = Clip(Path(path).stem, repo, blob, "unknown", None, "CC0 1.0")
            near = int(np.searchsorted(held_out, clip_number(clip)))
            distance = min(abs(clip_number(clip) - n) for n in held_out[max(0, near - 1) : near + 1])
            if clip.id not in labelled and distance > HELD_OUT_MARGIN:
                clips[clip.id] = clip
    return {"train": sorted(clips.values(), key=lambda clip: shuffle_key(clip.id))}


def joined(segments: list[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
    """Segments of one channel, grouped if there is little silence between them."""
    group: list[dict[str, object]] = []
    for segment in segments:
        if group:
            gap = _start(segment) - _end(group[-1])
            if gap > JOIN_GAP or _end(segment) - _start(group[0]) > JOIN_LENGTH:
                yield group
                group = []
        group.append(segment)
    if group:
        yield group


def _start(segment: dict[str, object]) -> float:
    return float(str(segment["start_ms"])) / 1000


def _end(segment: dict[str, object]) -> float:
    return _start(segment) + float(str(segment["duration_ms"])) / 1000


def harper_call(repository: Repository, files: dict[str, str], sid: str) -> Iterator[Clip]:
    """The utterances of one call, both channels; `start_ms` is the place in the channel's file (measured by energy)."""
    repo, _, folder = HARPER
    segments = json.loads(repository.read(files[f"{folder}/transcript/{sid}.json"]))
    metadata = json.loads(repository.read(files[f"{folder}/metadata/{sid}.json"]))
    for role in ("agent", "caller"):
        channel = sorted((s for s in segments if s["speaker_role"] == role), key=_start)
        blob, speaker = files[f"{folder}/audio/{role}/{sid}.wav"], f"hv{metadata[role]['speaker_id']:02d}"
        for number, group in enumerate(joined(channel)):
            text = " ".join(str(segment["human_transcript"]) for segment in group).replace("~", " ")
            start, end = max(0.0, _start(group[0]) - PAD), max(map(_end, group)) + PAD
            clip = Clip(f"{sid}-{role}-{number:03d}", repo, blob, speaker, text, "CC BY 4.0", start, end)
            yield clip


def harper_valley() -> dict[str, list[Clip]]:
    """Calls cut by the transcript's times; tags of noises removed, utterances with unknown words dropped."""
    repo, commit, folder = HARPER
    repository = Repository(repo)
    files = repository.files(commit, folder)
    sids = [Path(path).stem for path in files if path.startswith(f"{folder}/transcript/")]
    speakers: dict[str, list[Clip]] = defaultdict(list)
    for sid in sids:
        for clip in harper_call(repository, files, sid):
            assert clip.text is not None
            text = " ".join(re.sub(r"\[(?!unintelligible)[a-z]*\]", " ", clip.text).split())
            if text and not re.search(r"[<\[]", text):
                speakers[clip.speaker].append(replace(clip, text=text))
    few = [name for name in speakers if clip_hours(speakers[name]) < HARPER_SPEAKER_HOURS]
    few.sort(key=shuffle_key)
    splits: dict[str, list[Clip]] = {}
    for split in ("dev", "test"):
        clips: list[Clip] = []
        while clip_hours(clips) < HARPER_HELD_OUT_HOURS:
            clips += speakers.pop(few.pop())
        splits[split] = clips
    return {"train": [clip for clips in speakers.values() for clip in clips], **splits}


def clip_hours(clips: list[Clip]) -> float:
    return sum((clip.end or 0) - (clip.start or 0) for clip in clips) / 3600


CORPORA = {
    "librispeech": librispeech,
    "harpervalley": harper_valley,
    "commonvoice": common_voice,
    "commonvoice-v1": common_voice_v1,
    "unlabelled": unlabelled,
}


def sentences_of(names: tuple[str, ...], splits: dict[str, dict[str, list[Clip]]]) -> set[str]:
    """Sentences of all corpora's dev sets, test sets or both."""
    found = set()
    for corpus, parts in splits.items():
        for split in names:
            for clip in parts.get(split, []):
                text = normalised(clip.text or "")
                if corpus != "harpervalley" or len(text.split()) >= COMMON_SENTENCE:
                    found.add(text)
    return found


def select(corpus: str, splits: dict[str, dict[str, list[Clip]]]) -> tuple[dict[str, list[Clip]], Counter[str]]:
    """The usable clips of a corpus, and the number of dropped clips by reason."""
    dropped: Counter[str] = Counter()
    forbidden = {"train": sentences_of(("dev", "test"), splits), "dev": sentences_of(("test",), splits), "test": set()}
    order = [(c, s) for s in ("test", "dev", "train") for c in CORPORA]
    seen: set[str] = set()
    kept: dict[str, list[Clip]] = {}
    for name, split in order:
        clips = []
        for clip in splits[name].get(split, []):
            keys = {clip.id} if clip.start is not None else {clip.id, clip.blob}
            whole = name == "librispeech" and split == "dev"
            if not whole and clip.text is not None and normalised(clip.text) in forbidden[split]:
                reason = "sentence of a held-out set"
            elif keys & seen:
                reason = "occurs twice"
            else:
                clips.append(clip)
                seen |= keys
                continue
            dropped[f"{split}: {reason}"] += name == corpus
        if name == corpus and clips:
            kept[split] = clips
    return kept, +dropped


def decode(contents: bytes, clip: Clip) -> np.ndarray:
    """Samples of a clip at 16 kHz. MP3 files are decoded whole."""
    samples, rate = sf.read(io.BytesIO(contents), dtype="float32", always_2d=True)
    mono = samples.mean(1)
    if clip.start is not None and clip.end is not None:
        mono = mono[int(clip.start * rate) : int(clip.end * rate)]
    return mono if rate == RATE else soxr.resample(mono, rate, RATE)


def unusable(samples: np.ndarray) -> str | None:
    """The reason why a recording is not kept, or None."""
    seconds = len(samples) / RATE
    if not SECONDS[0] <= seconds <= SECONDS[1]:
        return f"not between {SECONDS[0]} and {SECONDS[1]} s"
    return "silent" if np.abs(samples).max() < FAINTEST else None


def extract(clip: Clip, repository: Repository, target: Path) -> float:
    """Write one clip unless it exists, and return its seconds; raises ValueError if it is not kept."""
    if target.is_file():
        return float(sf.info(target).duration)
    contents = repository.read(clip.blob)
    if contents[:4] == b"fLaC" and clip.start is None and sf.info(io.BytesIO(contents)).samplerate == RATE:
        seconds = float(sf.info(io.BytesIO(contents)).duration)
        if seconds > 40:
            raise ValueError("longer than 40 s")
        _replace(target, contents)
        return seconds
    samples = decode(contents, clip)
    reason = unusable(samples)
    if reason:
        raise ValueError(reason)
    buffer = io.BytesIO()
    sf.write(buffer, np.clip(samples, -1, 1), RATE, format="FLAC", subtype="PCM_16")
    _replace(target, buffer.getvalue())
    return len(samples) / RATE


def _replace(target: Path, contents: bytes) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    part.write_bytes(contents)
    part.replace(target)


def target_of(clip: Clip, corpus: str) -> Path:
    """The path of a clip, in a folder named by two characters of a hash, to keep folders small."""
    return Path("audio") / shuffle_key(clip.id)[:2] / f"{clip.id}.flac"


def write_split(corpus: str, split: str, clips: Iterable[Clip], hours: float) -> Counter[str]:
    """Extract the clips of one split, write its manifest and return the number of dropped clips by reason."""
    folder, dropped = DATA / corpus, Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)
    repositories: dict[str, Repository] = {}
    part, total = folder / f"{split}.jsonl.part", 0.0
    with part.open("w") as manifest:
        for count, clip in enumerate(clips):
            if total > 3600 * hours:
                break
            if clip.repo not in repositories:
                repositories[clip.repo] = Repository(clip.repo)
            target = target_of(clip, corpus)
            try:
                seconds = extract(clip, repositories[clip.repo], folder / target)
            except (ValueError, sf.LibsndfileError, FileNotFoundError) as error:
                reason = str(error) if isinstance(error, ValueError) else type(error).__name__
                dropped[f"{split}: {reason}"] += 1
                continue
            total += seconds
            row = {"id": clip.id, "audio": str(target), "seconds": round(seconds, 3), "speaker": clip.speaker}
            row |= {"text": clip.text, "source": clip.source, "licence": clip.licence}
            manifest.write(json.dumps(row, ensure_ascii=False) + "\n")
            if count % 2000 == 0:
                manifest.flush()
                print(f"{corpus} {split}: {count} clips, {total / 3600:.2f} h", flush=True)
    part.replace(folder / f"{split}.jsonl")
    print(f"{corpus} {split}: finished, {total / 3600:.2f} h", flush=True)
    return dropped


def read_rows(manifest: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in manifest.read_text().splitlines()]


def report() -> None:
    """Print hours, speakers and dropped clips, and check that the splits share no speaker and no sentence."""
    print("| corpus | split | hours | utterances | speakers |\n|---|---|---|---|---|")
    speakers: dict[str, set[object]] = defaultdict(set)
    sentences: dict[str, set[str]] = defaultdict(set)
    for manifest in sorted(DATA.glob("*/*.jsonl")):
        rows = read_rows(manifest)
        hours = sum(float(str(row["seconds"])) for row in rows) / 3600
        found = {row["speaker"] for row in rows}
        known = "unknown" if manifest.parent.name in ("unlabelled", "commonvoice-v1") else len(found)
        print(f"| {manifest.parent.name} | {manifest.stem} | {hours:.2f} | {len(rows)} | {known} |")
        speakers[manifest.stem] |= found
        texts = {normalised(str(row["text"])) for row in rows if row["text"]}
        sentences[manifest.stem] |= {text for text in texts if len(text.split()) >= COMMON_SENTENCE}
    for a, b in (("train", "dev"), ("train", "test"), ("dev", "test")):
        shared = len(speakers[a] & speakers[b]), len(sentences[a] & sentences[b])
        print(f"in {a} and {b}: {shared[0]} speakers, {shared[1]} sentences of {COMMON_SENTENCE} words or more")
    for path in sorted(DATA.glob("*/dropped.json")):
        print(f"{path.parent.name}: dropped {json.loads(path.read_text())}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", choices=[*CORPORA, "report"])
    parser.add_argument("--hours", type=float, default=1000.0, help="maximum hours of a split")
    arguments = parser.parse_args()
    names = [name for name in arguments.corpora if name != "report"]
    splits = {name: build() for name, build in CORPORA.items()} if names else {}
    for name in names:
        kept, dropped = select(name, splits)
        for split in ("dev", "test", "train"):
            if split in kept:
                dropped += write_split(name, split, kept[split], arguments.hours)
        (DATA / name / "dropped.json").write_text(json.dumps(dropped, indent=1, sort_keys=True))
    if "report" in arguments.corpora:
        report()


if __name__ == "__main__":
    main()
