"""Faults in losses, batches and the trainer."""

from __future__ import annotations

from mutations.mutation import Mutation

MUTATIONS = [
    Mutation(
        "parts of weight zero are counted",
        "training/losses.py",
        "if weight > 0:",
        "if weight >= 0:",
        ("tests/training/test_losses.py",),
    ),
    Mutation(
        "the CTC loss counts <eos>",
        "training/losses.py",
        "lengths = (batch.targets_BL != PADDING).sum(1) - 1  # without <eos>",
        "lengths = (batch.targets_BL != PADDING).sum(1)",
        ("tests/training/test_losses.py",),
    ),
    Mutation(
        "the CTC loss is a mean over frames",
        "training/losses.py",
        "return total / _steps(batch)",
        "return total / output.frames_B.sum()",
        ("tests/training/test_losses.py",),
    ),
    Mutation(
        "label smoothing is forgotten",
        "training/losses.py",
        "return F.cross_entropy(logits, targets, ignore_index=PADDING, label_smoothing=self.label_smoothing)",
        "return F.cross_entropy(logits, targets, ignore_index=PADDING)",
        ("tests/training/test_losses.py",),
    ),
    Mutation(
        "padding is counted among the errors",
        "training/losses.py",
        "return ((output.decoder_BLV.argmax(-1) != batch.targets_BL) & exists_BL).sum(), exists_BL.sum()",
        "return (output.decoder_BLV.argmax(-1) != batch.targets_BL).sum(), exists_BL.sum()",
        ("tests/training/test_losses.py",),
    ),
    Mutation(
        "the first halting update comes one too late",
        "training/asr_task.py",
        "if since <= 0:",
        "if since <= 1:",
        ("tests/training/test_asr_task.py::test_no_step_is_halted_up_to_the_update_that_is_set_and_as_set_after_it",),
    ),
    Mutation(
        "the warm-up is linear in the root of the update",
        "training/schedule.py",
        "return factor * width**-0.5 * min(update**-0.5, update * warmup**-1.5)",
        "return factor * width**-0.5 * min(update**-0.5, update**0.5 * warmup**-1.0)",
        ("tests/training/test_schedule.py",),
    ),
    Mutation(
        "gradients are not clipped",
        "training/optimisation.py",
        "norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)",
        "norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1e9)",
        ("tests/training/test_schedule.py",),
    ),
    Mutation(
        "parts count alike",
        "training/optimisation.py",
        "scaled = part_losses.joint * (weight * self.ranks.count)  # averaged over processes",
        "scaled = part_losses.joint / len(share.parts)",
        ("tests/training/test_distributed.py::test_a_batch_in_parts_gives_the_gradient_of_the_whole",),
    ),
    Mutation(
        "an interrupted update is saved",
        "training/trainer.py",
        "if self.consistent:",
        "if True:",
        ("tests/training/test_asr_task.py::test_stopped_in_the_middle_of_a_step_of_adam_it_does_not_keep_half_of_it",),
    ),
]
