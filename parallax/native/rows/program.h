// A parsed program: the text of the attribute `program`, checked line by line.
//
// parallax/graph/row_updates.py defines the language.
#ifndef PARALLAX_NATIVE_ROWS_PROGRAM_H_
#define PARALLAX_NATIVE_ROWS_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "operations.h"

namespace parallax_rows {

struct Operand {
  enum Kind { kState, kGradient, kScalar, kConstant, kRegister };
  Kind kind = kConstant;
  int index = 0;
  double value = 0;
};

struct Register {
  Operation operation;
  std::vector<Operand> operands;
  bool of_state = false, of_gradient = false;  // its dependencies
};

// A factor of a bound: a state or scalar, and its least and greatest power in a term.
struct Leaf {
  bool is_state;
  int index;
  double low, high;
};

// The known new value of a state with a zero gradient: factor * old state - (at most bound).
struct Missed {
  bool known = false, moves = false;
  Operand factor, bound;
  std::vector<Leaf> leaves;
};

struct Program {
  int states = 0, scalars = 0;
  int gradients = 1;  // of a row, each as wide as the row
  std::vector<Register> registers;
  std::vector<Operand> next;  // by state: its new value; itself if unchanged
  std::vector<Missed> missed;  // by state
  bool covered = false;        // all states have a known value with a zero gradient
};

// gradients: the number per row.
absl::StatusOr<Program> ReadProgram(const std::string& text, int gradients);

}  // namespace parallax_rows

#endif
