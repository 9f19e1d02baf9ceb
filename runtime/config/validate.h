// What must hold between the fields of a job. Pure functions of the job and the number of ranks; rules of single fields
// are checked before (rules.h). Every message has the numbers and what to do.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/problem.h"

namespace ananke {

class Checkpointing;
class Data;
class Evaluation;
class Job;
class JobMemory;
class LearningRate;
class Mesh;
class Model;
class Telemetry;
class Training;

// What a field that may be left out stands for.
std::uint32_t effective_num_key_value_heads(const Model& model);
std::uint32_t effective_head_dim(const Model& model);  // 0 when it is left out and hidden_size / heads is not whole
std::uint64_t effective_shard(const Mesh& mesh, std::uint64_t ranks);  // 0 when it is left out and not whole
// Ranks that the mesh alone asks for; what is left out counts as 1.
std::uint64_t ranks_of(const Mesh& mesh);
bool has_dense_layer(const Model& model);
bool has_moe_layer(const Model& model);

Problems check_model(const Model& model);
Problems check_router(const Model& model);  // part of check_model, for a model with experts
Problems check_positions(const Model& model, const Training& training);
Problems check_mesh(const Mesh& mesh, std::uint32_t ranks);
// The expert axis deals experts: a model without any has nothing for it.
Problems check_expert_axis(const Mesh& mesh, const Model& model);
// Rows are dealt to ranks in turn, each rank's rows cut in microbatches.
Problems check_rows(const Training& training, std::uint32_t ranks);
// Tokens of a microbatch are counted in 32 bits, and a step is a list with entries for every layer of every microbatch.
// Of rows that check_rows takes.
Problems check_microbatches(const Training& training, const Model& model, std::uint32_t ranks);
Problems check_learning_rate(const LearningRate& rate, const Training& training);
Problems check_data(const Data& data, const Model& model);
Problems check_evaluation(const Evaluation& evaluation, const Data& data);
Problems check_training(const Training& training);
// Operators are named with SELECTIVE only, each once; ranges of layers exist and do not overlap.
Problems check_recompute(const Training& training, const Model& model);
Problems check_checkpoint(const Checkpointing& checkpoint);
Problems check_telemetry(const Telemetry& telemetry, const Training& training);
Problems check_optimizer_rules(const Job& job);  // regular expressions
// All of the above.
Problems check_job(const Job& job, std::uint32_t ranks);
// What is allowed in a resolved job and yet may not be meant, a sentence each.
std::vector<std::string> remarks_on(const Job& job);

// initial_weights is a Hugging Face folder of the job's model: reads its config and its tensors' names and shapes.
Problems check_initial_weights(const Job& job);
// Files that the job names exist, and the run folder can be one. Looks at the file system.
Problems check_files(const Job& job);

}  // namespace ananke
