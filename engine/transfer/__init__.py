"""Moving sessions in and out: legacy JSONL, import, export."""
