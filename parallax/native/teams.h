// The workers of a job, and the teams into which their communicator splits, by name.
#ifndef PARALLAX_NATIVE_TEAMS_H_
#define PARALLAX_NATIVE_TEAMS_H_

#include <mpi.h>

#include <map>
#include <string>
#include <vector>

namespace parallax {

// Some members of a communicator.
struct Members {
  MPI_Comm comm = MPI_COMM_NULL;
  std::vector<int> ranks;
  int place = -1;  // of this process among them; -1 where it is none

  int size() const { return static_cast<int>(ranks.size()); }
};

// workers    all
// host       those of this worker's host
// across     those that have this worker's place on their hosts
// leaders    the first of each host
// group      those of this worker's group of hosts
// stage      those that compute this worker's stage of the model
// replica    those that compute the stages of this worker's replica of the model
class Teams {
 public:
  // All workers must make it.
  Teams(MPI_Comm workers, int host, int group, int stage, int replica);

  // The team of a name that this worker is in; MPI_COMM_NULL where it is in none, or there is no such name. All workers
  // must ask for it the first time.
  MPI_Comm Find(const std::string& name);

  int host() const { return host_; }

 private:
  int ColorOf(const std::string& name) const;

  const MPI_Comm workers_;
  const int host_, group_, stage_, replica_;
  int place_ = 0;  // of this worker on its host
  std::map<std::string, MPI_Comm> found_;
};

// Those that were formed under a number (parallax_form_teams).
Teams* FindTeams(int number);

}  // namespace parallax

#endif  // PARALLAX_NATIVE_TEAMS_H_
