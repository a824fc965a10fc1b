"""Systems side by side: what to compare (`plan`, `values`), the runs (`runs`, `kept`), what they show (`findings`), and
how it is told (`report`, `tables`, `pictures`). `headsync compare` walks through them.
"""
