-- Every time longer than 1 ms in which a GPU of a process did nothing at all, between its first and its last operation.
-- Columns: pid, device, start_ns (when it ran dry), idle_ns. One row per gap.
WITH work AS (
    SELECT globalPid, deviceId, start, end FROM CUPTI_ACTIVITY_KIND_KERNEL
    UNION ALL
    SELECT globalPid, deviceId, start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY
    UNION ALL
    SELECT globalPid, deviceId, start, end FROM CUPTI_ACTIVITY_KIND_MEMSET
),
seen AS (
    -- The latest end so far, not the end of the row before: a short kernel may run inside of a long one.
    SELECT globalPid, deviceId, start, max(end) OVER (
        PARTITION BY globalPid, deviceId ORDER BY start, end
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS ended
    FROM work
)
SELECT
    globalPid >> 24 & 0xFFFFFF AS pid,
    deviceId AS device,
    ended AS start_ns,
    start - ended AS idle_ns
FROM seen
WHERE start - ended > 1000000
ORDER BY start_ns
