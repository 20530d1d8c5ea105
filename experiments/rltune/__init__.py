"""RLTune and the orders that it is compared with, on windows that no order was trained on."""
