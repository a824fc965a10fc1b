"""Faults in the command line, batch transcription and downloads."""

from __future__ import annotations

from mutations.mutation import Mutation

BATCH = "tests/test_batch_transcription.py"
DOWNLOAD = "tests/test_model_download.py"

MUTATIONS: list[Mutation] = [
    Mutation(
        "texts of another model are taken over",
        "batch_transcription.py",
        '_COMPARED = ("checksum", "lm_checksum", "settings")  # of an identity; names and paths may change',
        '_COMPARED = ("settings",)',
        (f"{BATCH}::test_texts_of_another_model_or_other_settings_are_never_taken_over",),
    ),
    Mutation(
        "texts of other settings are taken over",
        "batch_transcription.py",
        '_COMPARED = ("checksum", "lm_checksum", "settings")  # of an identity; names and paths may change',
        '_COMPARED = ("checksum", "lm_checksum")',
        (f"{BATCH}::test_texts_of_another_model_or_other_settings_are_never_taken_over",),
    ),
    Mutation(
        "changed audio keeps its old text",
        "batch_transcription.py",
        'return bool(utterance.audio.is_file() and line["audio_bytes"] == utterance.audio.stat().st_size)',
        "return True",
        (f"{BATCH}::test_audio_that_has_changed_is_transcribed_again",),
    ),
    Mutation(
        "a stopped download starts again",
        "model_download.py",
        'with part.open("ab" if response.status == 206 else "wb") as file:',
        'with part.open("wb") as file:',
        (f"{DOWNLOAD}::test_a_broken_download_continues_where_it_stopped",),
    ),
    Mutation(
        "a download is not verified",
        "model_download.py",
        "if _sha256(part) == checksum:",
        "if True:",
        (f"{DOWNLOAD}::test_damage_on_the_server_is_an_error_and_the_cached_model_stays",),
    ),
    Mutation(
        "a listing may name files anywhere",
        "model_download.py",
        r'found = [re.fullmatch(r"([0-9a-f]{64})  (\w[\w.-]*)", line) for line in lines]',
        r'found = [re.fullmatch(r"([0-9a-f]{64})  (.*)", line) for line in lines]',
        (f"{DOWNLOAD}::test_a_listing_cannot_name_files_outside_the_folder",),
    ),
]
