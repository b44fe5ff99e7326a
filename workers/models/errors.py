"""Why a model cannot be served. Each is a ModelError, and its text is meant for whoever chose the model."""


class ModelError(Exception):
    """The model that the settings name cannot be served."""


class ModelNotFound(ModelError):
    """There is no model where the setting points; the text says what was looked for."""


class UnsupportedModel(ModelError):
    """The model asks for something that is not computed here; the text names it and what is."""


class BadCheckpoint(ModelError):
    """A tensor that the model needs is missing, or one is there that it would not use."""
