// The workers of a job, and the teams into which their communicator splits, by name.
#ifndef PARALLAX_NATIVE_TEAMS_H_
#define PARALLAX_NATIVE_TEAMS_H_

#include <mpi.h>

#include <map>
#include <string>
#include <vector>

namespace parallax {

// A subset of the members of a communicator.
struct Members {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int> ranks;
  int place = -1;  // the rank of this process in the subset; -1 if it is no member

  int size() const { return static_cast<int>(ranks.size()); }
};

// Splits the workers' communicator into teams:
//
// workers    all workers
// host       the workers of this worker's host
// across     the workers with this worker's local rank, one per host
// leaders    the first worker of each host
// group      the workers of this worker's group of hosts
// stage      the workers of this worker's stage of the model, one per replica
// replica    the workers of this worker's replica of the model, one per stage
class Teams {
 public:
  // A collective operation of all workers.
  Teams(MPI_Comm workers, int host, int group, int stage, int replica);

  // The communicator of this worker's team by name; MPI_COMM_NULL if it is in none, or the name is unknown. The first
  // call for a name is a collective operation of all workers.
  MPI_Comm Find(const std::string& name);

  int host() const { return host_; }

 private:
  int ColorOf(const std::string& name) const;

  const MPI_Comm workers_;
  const int host_, group_, stage_, replica_;
  int place_ = 0;  // the local rank of this worker
  std::map<std::string, MPI_Comm> found_;
};

// The teams with a number from parallax_form_teams().
Teams* FindTeams(int number);

}  // namespace parallax

#endif  // PARALLAX_NATIVE_TEAMS_H_
