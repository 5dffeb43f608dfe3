"""Readings: what each process counts (`readings.py`), what exists (`catalog.py`), one scrape
endpoint for all of them (`exporter.py`, `http.py`).
"""
