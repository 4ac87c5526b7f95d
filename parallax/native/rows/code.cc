// Compiles a program to instructions: operations on scalars alone go to the scalar body, and of the others only those
// that a result needs are kept. A zero gradient counts as a constant.
#include "code.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace parallax_rows {
namespace {

struct Value {
  bool is_vector;
  int place;
};

class Compiler {
 public:
  explicit Compiler(const Program& program) : program_(program) {
    code_.states = program.states;
    code_.scalars = program.scalars;
    code_.gradients = program.gradients;
    code_.vectors = program.states + program.gradients;
    code_.scalar_file = program.scalars;
    code_.covered = program.covered;
  }

  Code Run() {
    code_.made = States(false);
    code_.missed = States(true);
    if (code_.covered) Known();
    return code_;
  }

 private:
  // Instructions for the new states.
  Instructions States(bool missed) {
    Begin(missed);
    std::vector<std::pair<int, int>> from;
    for (int state = 0; state < program_.states; ++state) {
      const Operand& next = program_.next[state];
      if (next.kind == Operand::kState && next.index == state) continue;
      from.push_back({state, Vector(Evaluate(next))});
    }
    for (const auto& [state, place] : from) into_.sets.push_back({state, place});
    WriteInPlace();
    return End();
  }

  void Known() {
    Begin(true);
    for (int state = 0; state < program_.states; ++state) {
      const Missed& missed = program_.missed[state];
      code_.factors.push_back(Evaluate(missed.factor).place);
      if (!missed.moves) continue;
      into_.results.push_back(Vector(Evaluate(missed.bound)));
      code_.moves.push_back({state, missed.leaves});
    }
    code_.bounds = End();
  }

  void Begin(bool missed) {
    missed_ = missed;
    into_ = {};
    vectors_.clear();
    used_ = program_.states + program_.gradients;
  }

  Instructions End() {
    code_.vectors = std::max(code_.vectors, used_);
    return std::move(into_);
  }

  int NewScalar() { return code_.scalar_file++; }
  int NewVector() { return used_++; }

  int Constant(double value) {
    for (const auto& [place, known] : code_.constants) {
      if (std::memcmp(&known, &value, sizeof value) == 0) return place;
    }
    code_.constants.push_back({NewScalar(), value});
    return code_.constants.back().first;
  }

  Value Evaluate(const Operand& operand) {
    switch (operand.kind) {
      case Operand::kState:
        return {true, operand.index};
      case Operand::kGradient:
        return missed_ ? Value{false, Constant(0)} : Value{true, program_.states + operand.index};
      case Operand::kScalar:
        return {false, operand.index};
      case Operand::kConstant:
        return {false, Constant(operand.value)};
      default:
        return OfRegister(operand.index);
    }
  }

  Value OfRegister(int index) {
    const Register& one = program_.registers[index];
    const bool is_vector = one.of_state || (one.of_gradient && !missed_);
    auto& places = is_vector ? vectors_ : scalars_;
    // A value that does not depend on the gradient is the same in both kinds of update.
    const auto key = std::make_pair(index, !is_vector && one.of_gradient);
    const auto found = places.find(key);
    if (found != places.end()) return {is_vector, found->second};
    std::vector<Value> operands;
    for (const Operand& operand : one.operands) operands.push_back(Evaluate(operand));
    const int place = is_vector ? AddVector(one.operation, operands) : AddScalar(one.operation, operands);
    places[key] = place;
    return {is_vector, place};
  }

  int AddScalar(Operation operation, const std::vector<Value>& operands) {
    int places[3] = {0, 0, 0};
    for (size_t i = 0; i < operands.size(); ++i) places[i] = operands[i].place;
    const int out = NewScalar();
    code_.scalar_body.push_back({operation, places[0], places[1], places[2], out});
    return out;
  }

  int Add(Operation operation, Form form, int x, int y, int z) {
    const int out = NewVector();
    into_.body.push_back({static_cast<int>(operation) * kForms + form, x, y, z, out});
    return out;
  }

  int Vector(Value value) {
    return value.is_vector ? value.place : Add(Operation::k_fill, kScalarOnly, value.place, 0, 0);
  }

  int AddVector(Operation operation, const std::vector<Value>& operands) {
    if (operation >= Operation::k_pow) {  // pow and select have one form
      int places[3] = {0, 0, 0};
      for (size_t i = 0; i < operands.size(); ++i) places[i] = Vector(operands[i]);
      return Add(operation, kVectors, places[0], places[1], places[2]);
    }
    if (operands.size() == 1) return Add(operation, kVectors, operands[0].place, 0, 0);
    const Form form = !operands[0].is_vector ? kScalarVector : !operands[1].is_vector ? kVectorScalar : kVectors;
    return Add(operation, form, operands[0].place, operands[1].place, 0);
  }

  static bool Reads(const Instruction& one, int place) {
    const int form = one.code % kForms, operands = OperandsOf(static_cast<Operation>(one.code / kForms));
    if (form == kScalarOnly) return false;
    return (form != kScalarVector && one.x == place) || (operands > 1 && form != kVectorScalar && one.y == place) ||
           (operands > 2 && one.z == place);
  }

  // A register that only becomes a state's new value is the state itself, if nothing reads the old value after it.
  void WriteInPlace() {
    std::vector<Set> kept;
    for (size_t number = 0; number < into_.sets.size(); ++number) {
      if (!TryInPlace(number)) kept.push_back(into_.sets[number]);
    }
    into_.sets = kept;
  }

  bool TryInPlace(size_t number) {
    const Set set = into_.sets[number];
    if (set.from < program_.states + program_.gradients) return false;
    for (size_t other = 0; other < into_.sets.size(); ++other) {
      if (other != number && (into_.sets[other].from == set.state || into_.sets[other].from == set.from)) return false;
    }
    size_t writer = 0;
    while (into_.body[writer].out != set.from) ++writer;
    for (size_t later = writer + 1; later < into_.body.size(); ++later) {
      if (Reads(into_.body[later], set.state)) return false;
    }
    into_.body[writer].out = set.state;
    for (size_t later = writer + 1; later < into_.body.size(); ++later) {
      Instruction& one = into_.body[later];
      const int form = one.code % kForms;
      if (form == kScalarOnly) continue;
      if (form != kScalarVector && one.x == set.from) one.x = set.state;
      if (form != kVectorScalar && one.y == set.from) one.y = set.state;
      if (one.z == set.from) one.z = set.state;
    }
    return true;
  }

  const Program& program_;
  Code code_;
  Instructions into_;
  bool missed_ = false;
  int used_ = 0;
  std::map<std::pair<int, bool>, int> vectors_, scalars_;
};

}  // namespace

Code Compile(const Program& program) { return Compiler(program).Run(); }

}  // namespace parallax_rows
