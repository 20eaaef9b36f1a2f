"""Make demonstrations of people's work: record it, transcribe and align speech, curate, annotate a model's rollout."""

__all__ = [
    "annotation",
    "asr",
    "audio",
    "curate",
    "devtools",
    "ingest",
    "recorder",
    "refine",
    "reviewing",
    "reword",
    "rows",
    "rrweb",
    "selection",
    "session",
    "synthetic",
    "utterances",
]
