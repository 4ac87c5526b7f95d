// Brings rows of a table and its slots up to date, and updates them.
#ifndef PARALLAX_NATIVE_ROWS_INTERPRET_H_
#define PARALLAX_NATIVE_ROWS_INTERPRET_H_

#include <cstdint>

#include "code.h"
#include "ring.h"

namespace parallax_rows {

// A row that has missed the last `behind` updates; or, with a gradient, only the last one.
template <typename T>
struct Row {
  int64_t row;
  int64_t behind;
  const T* gradient;  // those of the last update, one after the other; null if it has none for the row
};

template <typename T>
struct Table {
  const Code& code;
  const Ring<T>& ring;
  T* const* states;  // by state: [rows, width]
  int64_t width;
};

// Brings rows up to the last update of the ring; threads must have disjoint rows.
template <typename T>
void BringRows(const Table<T>& table, const Row<T>* rows, int64_t count);

// Updates rows, each of which has a gradient and is listed once; other rows are unchanged.
//
// scalars: the scalar file. states: by state, [rows, width]. rows, gradients: [count] and [count, gradients of a row *
// width].
template <typename T>
void UpdateOnlyRows(const Code& code, const T* scalars, T* const* states, int64_t width, const int64_t* rows,
                    const T* gradients, int64_t count);

}  // namespace parallax_rows

#endif
