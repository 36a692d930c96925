-- Every time longer than 1 ms in which a GPU of a process did nothing at all, between its first and its last operation.
-- Columns: pid, device, start_ns (when it ran dry), idle_ns. One row per gap.
SELECT
    globalPid / 0x1000000 AS pid,
    deviceId AS device,
    ended AS start_ns,
    start - ended AS idle_ns
FROM (
    SELECT globalPid, deviceId, start, lag(end) OVER (ORDER BY start) AS ended
    FROM CUPTI_ACTIVITY_KIND_KERNEL
)
WHERE start - ended > 1000000
ORDER BY start_ns
