"""nbgrader's configuration. See "For instructors" in README.md."""

c = get_config()  # noqa: F821  (nbgrader provides it)

c.CourseDirectory.course_id = "from_kv_cache_to_vllm"
c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"

# What a learner finds in place of a solution. The checks answer it with "Not written yet".
c.ClearSolutions.code_stub = {"python": "raise NotImplementedError"}

# A solution says from which code and on which machine its outputs come. A lab has no outputs.
c.GenerateAssignment.preprocessors.append("nbconvert.preprocessors.ClearMetadataPreprocessor")
c.ClearMetadataPreprocessor.enabled = True
c.ClearMetadataPreprocessor.clear_cell_metadata = False
c.ClearMetadataPreprocessor.preserve_nb_metadata_mask = {"kernelspec", "language_info", "widgets"}

# A check may load the model: allow for slow machines.
c.Execute.timeout = 300
# On a busy machine, outputs may come late. After its default of 4 s nbgrader takes a cell that is
# right for one that says nothing, and gives no points.
c.Execute.iopub_timeout = 120
c.Execute.kernel_name = "python3"
