// A program compiled for execution: instructions over vectors of a row's columns, and separately the computations
// common to all rows, which are executed once per update.
#ifndef PARALLAX_NATIVE_ROWS_CODE_H_
#define PARALLAX_NATIVE_ROWS_CODE_H_

#include <vector>

#include "program.h"

namespace parallax_rows {

// Operands are indices into the vector file or the scalar file, depending on the form.
enum Form { kVectors, kVectorScalar, kScalarVector, kScalarOnly, kForms };

struct Instruction {
  int code;  // operation * kForms + form
  int x, y, z, out;
};

struct Set {
  int state, from;
};

// The vector file: the states, the gradients, then registers.
struct Instructions {
  std::vector<Instruction> body;
  std::vector<Set> sets;     // values that the body has not written in place
  std::vector<int> results;  // locations of the roots other than states
};

struct ScalarInstruction {
  Operation operation;
  int x, y, z, out;
};

struct Move {
  int state;
  std::vector<Leaf> leaves;
};

struct Code {
  int states = 0, scalars = 0, gradients = 1, vectors = 0;
  // The scalar file: those of the update, then constants and values computed from them.
  int scalar_file = 0;
  std::vector<std::pair<int, double>> constants;
  std::vector<ScalarInstruction> scalar_body;
  Instructions made;    // an update with a gradient
  Instructions missed;  // one whose gradient is zero
  Instructions bounds;  // the bounds of `moves`, of the states before a missed update
  bool covered = false;
  std::vector<int> factors;  // by state, indices into the scalar file; empty unless covered
  std::vector<Move> moves;
};

Code Compile(const Program& program);

}  // namespace parallax_rows

#endif
