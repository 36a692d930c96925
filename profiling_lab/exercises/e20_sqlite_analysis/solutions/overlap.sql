-- For how long each GPU of a process copied, and for how much of that time a kernel ran beside the copy.
-- Columns: pid, device, copy_ns, hidden_ns. One row per GPU that copied. Time is counted once, however much runs in it.
WITH edges AS (
    SELECT globalPid, deviceId, start AS t, 1 AS copy, 0 AS kernel FROM CUPTI_ACTIVITY_KIND_MEMCPY
    UNION ALL
    SELECT globalPid, deviceId, end, -1, 0 FROM CUPTI_ACTIVITY_KIND_MEMCPY
    UNION ALL
    SELECT globalPid, deviceId, start, 0, 1 FROM CUPTI_ACTIVITY_KIND_KERNEL
    UNION ALL
    SELECT globalPid, deviceId, end, 0, -1 FROM CUPTI_ACTIVITY_KIND_KERNEL
),
pieces AS (
    -- From edge to edge: how many copies and kernels run in the piece, and how long it is.
    SELECT
        globalPid,
        deviceId,
        sum(copy) OVER so_far AS copies,
        sum(kernel) OVER so_far AS kernels,
        lead(t) OVER (PARTITION BY globalPid, deviceId ORDER BY t) - t AS ns
    FROM edges
    WINDOW so_far AS (PARTITION BY globalPid, deviceId ORDER BY t)
)
SELECT
    globalPid >> 24 & 0xFFFFFF AS pid,
    deviceId AS device,
    sum(ns) AS copy_ns,
    sum(CASE WHEN kernels > 0 THEN ns ELSE 0 END) AS hidden_ns
FROM pieces
WHERE copies > 0
GROUP BY globalPid, deviceId
ORDER BY pid, device
