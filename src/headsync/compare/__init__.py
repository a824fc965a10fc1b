"""Systems side by side: what to compare (`plan`), the runs (`runs`), what they show (`findings`), and how it is told
(`tables`, `pictures`). `headsync compare` walks through them.
"""
