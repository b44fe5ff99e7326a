"""`headrace up`: every process of Headrace on one machine, supervised."""
