-- Launches and GPU time of every kernel, by its full (demangled) name.
-- Columns: name, launches, total_ns. One row per name.
SELECT
    s.value AS name,
    count(*) AS launches,
    sum(k.end - k.start) AS total_ns
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k
JOIN StringIds AS s ON s.id = k.demangledName
GROUP BY s.value
ORDER BY total_ns DESC
