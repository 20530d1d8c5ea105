"""The holidays of a country, from the `holidays` library: the only module that knows it.

Rule: holidays are optional. What comes out are days counted from 1970-01-01; a model keeps those of its
training and of the year to come, so that nothing needs the library to forecast.
"""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

from cotenant.controller.papers.gfs.forecast import DAY_H, Demand

EPOCH: Final = date(1970, 1, 1)
HINT: Final = 'holidays need a library: pip install ".[gfs]" in the source folder'
DAYS_AHEAD: Final = 366


class NoHolidays(ValueError):
    """The library is missing, the country unknown, or the demand has no dates; the text says which."""


def days_of(country: str, demand: Demand) -> frozenset[int]:
    """The holidays of `country` among the demand's days, and those of a year after them. `country`: CN, DE,
    DE-BY, ...

    Raises:
        NoHolidays: see the class.
    """
    if not demand.dated:
        raise NoHolidays("the demand has no dates: a column `time`, or --start DATE, gives them")
    try:
        import holidays
    except ImportError:
        raise NoHolidays(HINT) from None
    first = EPOCH + timedelta(days=demand.first_hour // DAY_H)
    last = first + timedelta(days=demand.hours // DAY_H + DAYS_AHEAD)
    code, _, part = country.upper().partition("-")
    try:
        known = holidays.country_holidays(code, subdiv=part or None, years=range(first.year, last.year + 1))
    except (NotImplementedError, KeyError) as error:
        raise NoHolidays(f"there are no holidays of {country!r}: {error}".splitlines()[0]) from None
    return frozenset((day - EPOCH).days for day in known if first <= day <= last)
