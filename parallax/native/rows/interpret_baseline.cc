// The interpreter for any processor.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "interpret_kinds.h"


namespace parallax_rows {
namespace {
#include "interpret_rows.inc"
}  // namespace

void Bring_baseline(const Table<float>& table, const Row<float>* rows, int64_t count) { Bring(table, rows, count); }
void Bring_baseline(const Table<double>& table, const Row<double>* rows, int64_t count) { Bring(table, rows, count); }

}  // namespace parallax_rows
