"""What all tables share: how Python types are stored, and the clock."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import DateTime, Float, Integer, Text, Uuid, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase

NOW = text("clock_timestamp()")
NULLABLE_JSONB = JSONB(none_as_null=True)  # None is SQL's NULL, not JSON's null


class Base(DeclarativeBase):
    """Every timestamp has a zone and comes from the Postgres clock."""

    type_annotation_map = {
        datetime: DateTime(timezone=True),
        str: Text,
        dict[str, Any]: JSONB,
        list[int]: ARRAY(Integer),
        UUID: Uuid,
        float: Float,
        int: Integer,
    }
