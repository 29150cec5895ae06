"""transformers and the hub client without bars and warnings of their own; events and the log say it."""

import os
import warnings


def quiet() -> None:
    """Silence them; safe to call again."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module=r"(transformers|huggingface_hub)(\.|$)")
