"""Messages to people: of their jobs, and of whatever else concerns them.

Rule: a message is decided with the event that it follows from and written in that event's transaction, and it
is sent once that is durable. It stays in the journal until each way has taken it or is given up, so a restart
or another leader sends what is left, under the same id: at least once, never of something that did not
happen. (Going through the journal again from a mark could not tell what the state was at an old entry.)
"""

from cotenant.controller.notices.deliveries import ChildDeliveries, DeliveryResult, why_unreached
from cotenant.controller.notices.notifier import Notifier
from cotenant.controller.notices.owners import OwnerRequests

__all__ = ["ChildDeliveries", "DeliveryResult", "Notifier", "OwnerRequests", "why_unreached"]
