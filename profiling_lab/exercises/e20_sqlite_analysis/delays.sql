-- How long kernels waited from the start of the API call that launched them to their own start, by the launching thread.
-- Columns: pid, tid, kernels, mean_ns, longest_ns. Kernels without a recorded call do not count. One row per thread.
SELECT
    r.globalTid / 0x1000000 AS pid,
    r.globalTid AS tid,
    count(*) AS kernels,
    avg(k.start - r.start) AS mean_ns,
    max(k.start - r.start) AS longest_ns
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
JOIN CUPTI_ACTIVITY_KIND_RUNTIME AS r ON r.correlationId = k.correlationId
GROUP BY r.globalTid
ORDER BY longest_ns DESC
