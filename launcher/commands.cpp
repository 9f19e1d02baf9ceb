#include "launcher/command.h"

namespace ananke {

// Each is defined in the file of its name.
int command_check(const Arguments& arguments);
int command_checkpoint_info(const Arguments& arguments);
int command_checkpoint_list(const Arguments& arguments);
int command_checkpoint_verify(const Arguments& arguments);
int command_compare(const Arguments& arguments);
int command_completion(const Arguments& arguments);
int command_data_head(const Arguments& arguments);
int command_data_import(const Arguments& arguments);
int command_data_info(const Arguments& arguments);
int command_data_ngram(const Arguments& arguments);
int command_data_pack(const Arguments& arguments);
int command_export(const Arguments& arguments);
int command_health(const Arguments& arguments);
int command_health_node(const Arguments& arguments);
int command_import(const Arguments& arguments);
int command_man(const Arguments& arguments);
int command_parity(const Arguments& arguments);
int command_plugins(const Arguments& arguments);
int command_plugins_info(const Arguments& arguments);
int command_plugins_new(const Arguments& arguments);
int command_run(const Arguments& arguments);
int command_site_check(const Arguments& arguments);
int command_status(const Arguments& arguments);
int command_submit(const Arguments& arguments);
int command_supervise(const Arguments& arguments);
int command_topology(const Arguments& arguments);
int command_trace(const Arguments& arguments);
int command_worker(const Arguments& arguments);

std::span<const Command> all_commands() {
  static constexpr Command commands[] = {
      {"run", "train: start the job's workers, here or by srun, and wait for them", command_run, false, true},
      {"submit", "give a job to Slurm: make the site's batch script and submit it", command_submit},
      {"status", "how a job of Slurm and its run are", command_status},
      {"health", "how this node is, or all nodes of the allocation; what to exclude and to drain", command_health},
      {"check", "validate a job without starting anything; --print-config shows it resolved", command_check},
      {"topology", "which ranks are on which nodes, and how far the mesh's axes go there", command_topology},
      {"site check", "compare a site's profile with the machine that this runs on", command_site_check},
      {"compare", "two runs: configuration, loss curves, evaluations, speed, bytes, memory", command_compare},
      {"trace", "a traced step: how busy each stream was, gaps, what took the time", command_trace},
      {"plugins", "list the plugins that are found, and those refused with the reason", command_plugins},
      {"plugins info", "describe one plugin: its config's fields, defaults and limits", command_plugins_info},
      {"plugins new", "write a plugin of your own: sources, test and CMake, ready to build", command_plugins_new},
      {"data import", "make a token store from text, JSON lines or Megatron's data sets", command_data_import},
      {"data info", "what a token store holds", command_data_info},
      {"data head", "the first documents of a token store as text", command_data_head},
      {"data ngram", "what unigram and bigram models reach on held-out text", command_data_ngram},
      {"data pack", "what packing makes of token stores: padding, splits, how unevenly ranks work", command_data_pack},
      {"checkpoint list", "a run's checkpoints: size, age, mesh, complete or why not", command_checkpoint_list},
      {"checkpoint info", "what a checkpoint holds, and the job that wrote it", command_checkpoint_info},
      {"checkpoint verify", "read a checkpoint and compare every checksum", command_checkpoint_verify},
      {"export", "write a checkpoint's weights as a Hugging Face folder", command_export},
      {"import", "check a Hugging Face folder that training shall start from, and print its model", command_import},
      {"parity", "compare a Hugging Face model's logits, loss and gradients with a recorded case", command_parity},
      {"completion", "print the completion of this command line for bash", command_completion},
      {"man", "print the man page", command_man},
      {"health-node", "a task of srun: says how one node is; started by `ananke health`", command_health_node, true},
      {"supervise", "a task of srun: starts one worker; started by `ananke run`", command_supervise, true, true},
      {"worker", "one rank of a job; started by `ananke run`", command_worker, true, true},
  };
  return commands;
}

}  // namespace ananke
