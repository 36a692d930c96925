-- Copies by kind: how many, how many bytes, and the bandwidth of all of them together.
-- Columns: kind (as in ENUM_CUDA_MEMCPY_OPER.label), copies, bytes, gb_per_s (10^9 bytes per second). One row per kind.
SELECT
    kinds.label AS kind,
    count(*) AS copies,
    sum(c.bytes) AS bytes,
    sum(c.bytes) * 1.0 / sum(c.end - c.start) AS gb_per_s -- bytes per ns are 10^9 bytes per second
FROM CUPTI_ACTIVITY_KIND_MEMCPY AS c
JOIN ENUM_CUDA_MEMCPY_OPER AS kinds ON kinds.id = c.copyKind
GROUP BY kinds.label
ORDER BY bytes DESC
