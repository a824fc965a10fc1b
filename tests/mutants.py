"""Would the tests notice? Faults put into a copy of the attention mechanisms, one at a time.

    python tests/mutants.py [word ...]

Each mutation is a line of src/headsync/attention and the faulty line that takes its place. The tests of that file, and
the contracts, run against the copy; one of them has to fail. Words choose the mutations whose name holds one of them.
The outcome is an error when a mutation survives, when its line is no longer there, or when the tests fail without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "headsync"


class Mutation(NamedTuple):
    name: str
    file: str
    before: str  # a line of the file without its indentation
    after: str


MUTATIONS = [
    Mutation(
        "the scale of energies is forgotten",
        "base",
        "return side_by_side(q_BHLD / math.sqrt(q_BHLD.shape[-1]), k_BHTD.transpose(-1, -2))",
        "return side_by_side(q_BHLD, k_BHTD.transpose(-1, -2))",
    ),
    Mutation(
        "a step looks one frame too far",
        "base",
        "return torch.arange(frames, device=limit.device) < limit.unsqueeze(-1)",
        "return torch.arange(frames, device=limit.device) <= limit.unsqueeze(-1)",
    ),
    Mutation(
        "a step at its limit waits for one frame more",
        "base",
        "return (window.frames_B >= window.limit_B) | window.final_B",
        "return (window.frames_B > window.limit_B) | window.final_B",
    ),
    Mutation(
        "softmax over nothing is uniform",
        "softmax",
        "weights = energy.softmax(-1).masked_fill(~allowed, 0.0)  # a row that may see nothing has no weights",
        "weights = energy.softmax(-1)",
    ),
    Mutation(
        "a sum on the threshold halts",
        "accumulate",
        "return (total[..., :-1] <= self._most) & allowed",
        "return (total[..., :-1] < self._most) & allowed",
    ),
    Mutation(
        "the crossing frame is left out",
        "accumulate",
        "return (total[..., :-1] <= self._most) & allowed",
        "return (total[..., 1:] <= self._most) & allowed",
    ),
    Mutation(
        "a step on the threshold is decided",
        "accumulate",
        "halted_B = total[..., -1].amin(dim=(1, 2)) > self._most  # sums only grow",
        "halted_B = total[..., -1].amin(dim=(1, 2)) >= self._most",
    ),
    Mutation(
        "the first head decides for all",
        "accumulate",
        "halted_B = total[..., -1].amin(dim=(1, 2)) > self._most  # sums only grow",
        "halted_B = total[..., -1].amax(dim=(1, 2)) > self._most",
    ),
    Mutation(
        "heads do not add but the strongest counts",
        "accumulate",
        "return p_BHLT.sum(1, keepdim=True)  # eq. (8)",
        "return p_BHLT.amax(1, keepdim=True)",
    ),
    Mutation(
        "the joint threshold is that of one head",
        "accumulate",
        "return self.threshold * self.heads  # the joint threshold H",
        "return self.threshold",
    ),
    Mutation(
        "the sum is in half precision",
        "accumulate",
        "return p, F.pad(self._summed(at_least_single(p)).cumsum(-1), (1, 0))",
        "return p, F.pad(self._summed(p).cumsum(-1), (1, 0))",
    ),
    Mutation(
        "a gradient through the halt",
        "accumulate",
        "return Aligned((p * keep).expand(*shape, -1), keep.sum(-1).expand(shape), self._shortfall(p, limit_BL))",
        "return Aligned((p * keep * p / p.detach().clamp(min=1e-30)).expand(*shape, -1), keep.sum(-1).expand(shape))",
    ),
    Mutation(
        "what stops enters its own step again",
        "expectation",
        "enter.addcmul_(*stops)  # what stops enters the next step",
        "enter.addcmul_(p_here[1:], here[1:])",
    ),
    Mutation(
        "the derivative of the boundaries goes the wrong way",
        "expectation",
        "g_stops += g_next",
        "g_here[1:] += g_q[:-1]",
    ),
    Mutation(
        "a chunk is one frame too long",
        "expectation",
        "pairs = [((..., slice(0, frames - c)), (..., slice(c, frames))) for c in range(min(width, frames))]",
        "pairs = [((..., slice(0, frames - c)), (..., slice(c, frames))) for c in range(min(width + 1, frames))]",
    ),
    Mutation(
        "exponentials without their largest",
        "expectation",
        "torch.maximum(largest[boundary], u[frame], out=largest[boundary])",
        "torch.minimum(largest[boundary], u[frame], out=largest[boundary])",
    ),
    Mutation(
        "the derivative of the chunks forgets the sum",
        "expectation",
        "g_u = beta * g_beta - _spread(alpha * g_alpha, shares)",
        "g_u = beta * g_beta - _spread(g_alpha, shares)",
    ),
    Mutation(
        "one half does not stop",
        "bernoulli",
        "first_BM, fired_BM = first_true((energy_BMT >= 0) & scanned)  # p >= 1/2",
        "first_BM, fired_BM = first_true((energy_BMT > 0) & scanned)",
    ),
    Mutation(
        "boundaries go back",
        "bernoulli",
        "scanned = allowed.squeeze(2) & ~may_look(frames, boundary_BM) & ~lost_BM.unsqueeze(-1)",
        "scanned = allowed.squeeze(2) & ~lost_BM.unsqueeze(-1)",
    ),
    Mutation(
        "a boundary is never taken again",
        "bernoulli",
        "scanned = allowed.squeeze(2) & ~may_look(frames, boundary_BM) & ~lost_BM.unsqueeze(-1)",
        "scanned = allowed.squeeze(2) & ~may_look(frames, boundary_BM + 1) & ~lost_BM.unsqueeze(-1)",
    ),
    Mutation(
        "a lost head comes back",
        "bernoulli",
        "scanned = allowed.squeeze(2) & ~may_look(frames, boundary_BM) & ~lost_BM.unsqueeze(-1)",
        "scanned = allowed.squeeze(2) & ~may_look(frames, boundary_BM)",
    ),
    Mutation("noise in a stream", "bernoulli", "if self.training:", "if self.noise:"),
    Mutation(
        "energies stay as blunt as they were",
        "bernoulli",
        "p_BMLT = torch.sigmoid(self.sharpness * self._energies(q_BHLD, k_BHTD)).masked_fill(~allowed, 0.0)",
        "p_BMLT = torch.sigmoid(self._energies(q_BHLD, k_BHTD)).masked_fill(~allowed, 0.0)",
    ),
    Mutation(
        "steps that are padding fall short of the threshold",
        "accumulate",
        "missing_BML = F.relu(self.reach - total) * (limit_BL > 0).unsqueeze(1)",
        "missing_BML = F.relu(self.reach - total)",
    ),
    Mutation(
        "sums that reach further are punished, too",
        "accumulate",
        "missing_BML = F.relu(self.reach - total) * (limit_BL > 0).unsqueeze(1)",
        "missing_BML = (self.reach - total) * (limit_BL > 0).unsqueeze(1)",
    ),
    Mutation(
        "heads wait one frame too long",
        "bernoulli",
        "latest_BM = since_BM + self.wait_frames",
        "latest_BM = since_BM + self.wait_frames + 1",
    ),
    Mutation(
        "a head is due before the frame is there",
        "bernoulli",
        "due_BM = (latest_BM < sight_B.unsqueeze(1)) & ~lost_BM",
        "due_BM = (latest_BM <= sight_B.unsqueeze(1)) & ~lost_BM",
    ),
    Mutation(
        "a head that does not move holds all the others",
        "bernoulli",
        'since_BM = torch.maximum(b_B1, boundary_BM) if self.wait_from == "own" else b_B1',
        "since_BM = b_B1",
    ),
    Mutation(
        "heads have to stop for the end of a sentence, too",
        "bernoulli",
        "tokens_B = (steps_B - 1).clamp(min=0)  # the last step is that of <eos>, for which no frame is left",
        "tokens_B = steps_B",
    ),
    Mutation(
        "heads count before they know where tokens are",
        "bernoulli",
        "counts = math.isfinite(self.threshold)  # not in the first phase of training",
        "counts = True",
    ),
    Mutation(
        "the others do not speak up for dropped heads",
        "bernoulli",
        "scale_BM = stays_BM * self.monotonic_heads / stays_BM.sum(1, keepdim=True).clamp(min=1)",
        "scale_BM = stays_BM",
    ),
    Mutation(
        "one half cuts MTA",
        "bernoulli",
        "first_BH, fired_BH = first_true((energy.squeeze(2) > 0) & scanned)  # p > 1/2",
        "first_BH, fired_BH = first_true((energy.squeeze(2) >= 0) & scanned)",
    ),
    Mutation(
        "a frame is passed before it stops",
        "bernoulli",
        "passed = F.pad(F.logsigmoid(-energy).cumsum(-1), (1, 0))[..., :-1]",
        "passed = F.logsigmoid(-energy).cumsum(-1)",
    ),
    Mutation(
        "a residue of one half is lost",
        "fire",
        "fires = share.sum(-1, keepdim=True) >= 0.5  # a smaller residue is no token",
        "fires = share.sum(-1, keepdim=True) > 0.5",
    ),
    Mutation(
        "a sum of exactly 1 waits",
        "fire",
        "return share * fires, end_BL, ((after_BLT >= token + 1) & allowed).any(-1)",
        "return share * fires, end_BL, ((after_BLT > token + 1) & allowed).any(-1)",
    ),
    Mutation(
        "a complete token consumes one frame more",
        "fire",
        "end_BL = ((before_BLT < token + 1) & allowed).sum(-1)",
        "end_BL = ((before_BLT <= token + 1) & allowed).sum(-1)",
    ),
    Mutation(
        "<eos> counts as a token",
        "fire",
        "tokens_B = ((limit_BL > 0).sum(1) - 1).clamp(min=0)  # the last step is that of <eos>",
        "tokens_B = (limit_BL > 0).sum(1)",
    ),
    Mutation(
        "the same token again and again",
        "fire",
        "return Attended(weights, end_BL.expand(-1, q_BHD.shape[1]), ready_B, (taken_B + 1,))",
        "return Attended(weights, end_BL.expand(-1, q_BHD.shape[1]), ready_B, (taken_B,))",
    ),
]


def main(words: list[str]) -> int:
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    missing = [m for m in chosen if mutated(m) is None]
    for mutation in missing:
        say(f"GONE      {mutation.file}.py: {mutation.name}: there is no line `{mutation.before}`, or more than one")
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "headsync"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "models", "demo"))
        sound = run(Path(folder), ROOT / "tests" / "attention")
        if sound.returncode:
            say(f"{sound.stdout}\nthe tests fail without any mutation: put that right first")
            return 1
        for mutation in chosen:
            if mutation not in missing and survives(mutation, copy):
                survived.append(mutation)
    say(f"{len(chosen)} mutations, {len(survived)} survived, {len(missing)} gone")
    return 1 if survived or missing else 0


def mutated(mutation: Mutation) -> str | None:
    """The whole file with the fault in it; None if its line is not there exactly once."""
    lines = (PACKAGE / "attention" / f"{mutation.file}.py").read_text(encoding="utf-8").splitlines(keepends=True)
    places = [n for n, line in enumerate(lines) if line.strip() == mutation.before]
    if len(places) != 1:
        return None
    lines[places[0]] = lines[places[0]].replace(mutation.before, mutation.after)
    return "".join(lines)


def survives(mutation: Mutation, copy: Path) -> bool:
    """Whether all tests pass in spite of the fault; the copy is left without it."""
    text, path = mutated(mutation), copy / "attention" / f"{mutation.file}.py"
    assert text is not None
    sound = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    survived = run(copy.parent, *tests_of(mutation.file)).returncode == 0
    path.write_text(sound, encoding="utf-8")
    say(f"{'SURVIVED' if survived else 'caught  '}  {mutation.file}.py: {mutation.name}")
    return survived


def tests_of(file: str) -> list[Path]:
    """The tests of a file first, so that most faults are caught soon."""
    own = {"base": "softmax", "expectation": "bernoulli"}.get(file, file)
    return [ROOT / "tests" / "attention" / f"test_{own}.py", ROOT / "tests" / "contracts"]


def run(source: Path, *tests: Path) -> subprocess.CompletedProcess[str]:
    """The tests with the package of another folder. That each entry has a policy is not its matter."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-k", "not policy"]
    command += ["-o", f"pythonpath={source} {ROOT / 'tests'}", *map(str, tests)]
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
